"""What the pictures of planning are drawn with: SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape


class LogScale:
    """A logarithmic axis from values to pixels, with a margin around the values."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        margin = max(0.05 * (high - low), 0.08)
        self.low, self.high = low - margin, high + margin
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 of every decade; all digits where the axis is short."""
        short = self.high - self.low < 0.7
        for decade in range(math.floor(self.low), math.ceil(self.high)):
            for digit in range(1, 10) if short else (1, 2, 5):
                if self.low <= math.log10(digit) + decade <= self.high:
                    yield digit * 10.0**decade


def head(width: int, height: int) -> str:
    """The beginning of a picture of this size in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )


def axes(x: LogScale, y: LogScale, x_name: str, y_name: str) -> Iterator[str]:
    """A grid with its numbers and names."""
    bottom, right = y.start, x.end
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<path d="M{at:.1f} {bottom}V{y.end}" stroke="#e5e7eb"/>'
        yield text(at, bottom + 18, f"{tick:g}", anchor="middle")
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<path d="M{x.start} {at:.1f}H{right}" stroke="#e5e7eb"/>'
        yield text(x.start - 8, at + 4, f"{tick:g}", anchor="end")
    yield f'<path d="M{x.start} {y.end}V{bottom}H{right}" stroke="#111827" fill="none"/>'
    yield text((x.start + right) / 2, bottom + 42, x_name, anchor="middle")
    middle = (bottom + y.end) / 2
    yield (
        f'<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>"
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    """Words whose baseline begins, or is centred, or ends at a place, with white around letters:
    lines stop short of them."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        'paint-order="stroke" stroke="white" stroke-width="4">'
        f"{escape(words)}</text>"
    )
