"""An estimate under its roofline: arithmetic intensity against the rate of arithmetic, in SVG.

The roof is what a logical core could do: its HBM's bandwidth times the intensity, up to the Tensor
engine's peak in bfloat16 (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from neuronjax.planning import drawing
from neuronjax.planning.drawing import LogScale

Estimate = Any
"""`record.Estimate`, which shows this picture."""

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 30, 40, 60
_TERA = 1e12
_STEP, _LEAST = "#1f6feb", "#d1453b"


def svg(estimate: Estimate) -> str:
    """The picture; of a step without matrix products, a line that says so.

    A full dot is the step: its products over the bytes that its program moves to and from HBM, and
    over its time. A ring is what the step could reach if each argument were read and each result
    written once.
    """
    title = drawing.text(_LEFT, 24, f"{estimate.name} on {estimate.target}", size=15)
    begin = drawing.head(_WIDTH, _HEIGHT) + title
    if not estimate.model_flops or not estimate.hbm_traffic_bytes:
        return f"{begin}{drawing.text(_LEFT, 80, 'the step has no matrix products')}</svg>\n"
    dots = list(_dots(estimate))
    peak, bandwidth = estimate.max_flops / _TERA, estimate.max_hbm_bandwidth / _TERA
    ridge = peak / bandwidth
    intensities = [ridge, *(intensity for intensity, *_ in dots)]
    x = LogScale([min(intensities) / 3, max(intensities) * 3], _LEFT, _WIDTH - _RIGHT)
    lowest = min(rate for _, rate, *_ in dots)
    y = LogScale([lowest / 2, peak], _HEIGHT - _BOTTOM, _TOP)
    names = ("FLOP per byte of HBM traffic", "TFLOP/s of a logical core")
    parts = [begin, *drawing.axes(x, y, *names), *_roof(x, y, peak, bandwidth)]
    parts += [_dot(x, y, *dot) for dot in dots]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _dots(estimate: Estimate) -> Iterator[tuple[float, float, str, str]]:
    """Intensity, TFLOP/s, fill and description."""
    flops = estimate.model_flops
    rate = flops / estimate.step_seconds / _TERA
    share = estimate.mfu_estimated_percent
    yield flops / estimate.hbm_traffic_bytes, rate, _STEP, f"the step: {rate:.3g} ({share:.1f} %)"
    intensity = flops / estimate.essential_bytes
    rate = flops / (estimate.roofline_ns * 1e-9) / _TERA
    yield intensity, rate, "none", f"each argument and result moved once: {rate:.3g}"


def _roof(x: LogScale, y: LogScale, peak: float, bandwidth: float) -> Iterator[str]:
    lowest = 10**x.low
    begin = max(lowest, 10**y.low / bandwidth)
    ridge = x.at(peak / bandwidth)
    yield (
        f'<path d="M{x.at(begin):.1f} {y.at(begin * bandwidth):.1f}L{ridge:.1f} {y.at(peak):.1f}'
        f'H{x.end}" fill="none" stroke="#111827" stroke-width="2"/>'
    )
    yield drawing.text(x.end, y.at(peak) - 6, f"Tensor engine, {peak:.3g} TFLOP/s", anchor="end")
    middle = (begin * peak / bandwidth) ** 0.5
    left, top = x.at(middle), y.at(middle * bandwidth)
    yield drawing.text(left + 8, top + 12, f"HBM, {bandwidth:.3g} TB/s")


def _dot(x: LogScale, y: LogScale, intensity: float, rate: float, fill: str, words: str) -> str:
    left, top = x.at(intensity), y.at(rate)
    stroke = _LEAST if fill == "none" else fill
    at_end = left > (x.start + x.end) / 2
    anchor, shift = ("end", -10) if at_end else ("start", 10)
    return (
        f'<circle cx="{left:.1f}" cy="{top:.1f}" r="6" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="2"><title>{escape(words)}</title></circle>'
        + drawing.text(left + shift, top + 16, words, anchor=anchor)
    )
