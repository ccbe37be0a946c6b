"""A sweep as a picture: time against cost, and the front, in SVG that needs nothing else; and as a
page in which the picture and its table point at each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from neuronjax.planning.sweep import Point, Sweep

_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 230, 40, 60
_COLOURS = ("#1f6feb", "#d1453b", "#2a9d57", "#8e44ad", "#e08a00", "#0f8b8d", "#6b7280", "#b0287a")


class _Scale:
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


def svg(sweep: Sweep) -> str:
    """The picture; without a point that has an estimate it says so."""
    points = [point for point in sweep.points if point.estimate and point.cost > 0]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    )
    title = _text(_LEFT, 24, sweep.workload, size=15)
    if not points:
        return f"{head}{title}{_text(_LEFT, 80, 'nothing could be estimated')}</svg>\n"
    x = _Scale([point.time_ns / 1e6 for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Scale([point.cost for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [head, title, *_axes(x, y, sweep.cost_unit), _front(sweep.front, x, y)]
    targets = list(dict.fromkeys(point.target for point in points))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(targets)}
    parts += [_dot(point, x, y, colours[point.target]) for point in points]
    parts += _labels(sweep.front, x, y)
    parts += _legend(colours)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(x: _Scale, y: _Scale, unit: str) -> Iterator[str]:
    bottom, right = y.start, x.end
    for tick in x.ticks():
        at = x.at(tick)
        yield f'<path d="M{at:.1f} {bottom}V{y.end}" stroke="#e5e7eb"/>'
        yield _text(at, bottom + 18, f"{tick:g}", anchor="middle")
    for tick in y.ticks():
        at = y.at(tick)
        yield f'<path d="M{x.start} {at:.1f}H{right}" stroke="#e5e7eb"/>'
        yield _text(x.start - 8, at + 4, f"{tick:g}", anchor="end")
    yield f'<path d="M{x.start} {y.end}V{bottom}H{right}" stroke="#111827" fill="none"/>'
    yield _text((x.start + right) / 2, bottom + 42, "step time, ms", anchor="middle")
    middle = (bottom + y.end) / 2
    yield (
        f'<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(unit)}</text>"
    )


def _front(front: Sequence[Point], x: _Scale, y: _Scale) -> str:
    places = " ".join(f"{x.at(p.time_ns / 1e6):.1f},{y.at(p.cost):.1f}" for p in front)
    return f'<polyline points="{places}" fill="none" stroke="#9ca3af" stroke-dasharray="5 4"/>'


def _labels(front: Sequence[Point], x: _Scale, y: _Scale) -> Iterator[str]:
    """Mesh and batch of the points on the front, but for those that would lie on each other."""
    reached: list[tuple[float, float]] = []
    for point in front:
        left, top = x.at(point.time_ns / 1e6) + 9, y.at(point.cost) - 8
        words = point.label.removeprefix(point.target).strip()
        if words and all(abs(top - other) > 13 or abs(left - at) > 150 for at, other in reached):
            reached.append((left, top))
            yield _text(left, top, words)


def html(sweep: Sweep) -> str:
    """The picture with a table of all points, as a page without network."""
    front = set(map(id, sweep.front))
    rows = "".join(
        f'<tr data-point="{escape(point.label)}"><td>{"*" if id(point) in front else ""}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(point))
        + "</tr>"
        for point in sweep.points
    )
    heads = "".join(
        f"<th>{escape(name)}</th>"
        for name in ("", "target", "mesh", "batch", "dtype", "step", sweep.cost_unit, "")
    )
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{escape(sweep.workload)}'
        f"</title><style>{_STYLE}</style><main>{svg(sweep)}<div><table><tr>{heads}</tr>{rows}"
        f"</table></div></main><script>{_SCRIPT}</script></html>\n"
    )


def _cells(point: Point) -> Iterator[str]:
    yield from (point.target, point.mesh or "–", str(point.batch or "–"), point.dtype or "–")
    if point.estimate is None:
        yield from ("–", "–", point.error)
    else:
        yield f"{point.time_ns / 1e6:.3f} ms"
        yield f"{point.cost:.4g}"
        yield "" if point.usable else "does not fit"


_STYLE = """body{font:14px/1.45 system-ui,sans-serif;margin:24px;background:#fff;color:#111827}
main{max-width:1000px;margin:auto}svg{width:100%;height:auto}div{overflow-x:auto}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:4px 10px;
border-bottom:1px solid #e5e7eb;white-space:nowrap}tr.on{background:#e8f0fc}
circle.on{r:9;stroke:#111827;stroke-width:2}"""

_SCRIPT = """for (const one of document.querySelectorAll("[data-point]"))
  for (const [event, on] of [["pointerenter", true], ["pointerleave", false]])
    one.addEventListener(event, () => {
      for (const same of document.querySelectorAll("[data-point]"))
        if (same.dataset.point === one.dataset.point) same.classList.toggle("on", on);
    });"""


def _dot(point: Point, x: _Scale, y: _Scale, colour: str) -> str:
    """Hollow where it does not fit; its description appears under the mouse."""
    fill = colour if point.usable else "white"
    note = f"{point.label}: {point.time_ns / 1e6:.3f} ms, {point.cost:.4g}"
    return (
        f'<circle data-point="{escape(point.label)}" cx="{x.at(point.time_ns / 1e6):.1f}" '
        f'cy="{y.at(point.cost):.1f}" r="5" '
        f'fill="{fill}" stroke="{colour}"><title>{escape(note)}</title></circle>'
    )


def _legend(colours: dict[str, str]) -> Iterator[str]:
    left = _WIDTH - _RIGHT + 24
    for row, (name, colour) in enumerate(colours.items()):
        at = _TOP + 20 * row + 10
        yield f'<circle cx="{left}" cy="{at}" r="5" fill="{colour}"/>'
        yield _text(left + 12, at + 4, name)
    at = _TOP + 20 * len(colours) + 14
    yield f'<circle cx="{left}" cy="{at}" r="5" fill="white" stroke="#111827"/>'
    yield _text(left + 12, at + 4, "does not fit the memory")
    yield f'<path d="M{left - 6} {at + 20}h14" stroke="#9ca3af" stroke-dasharray="5 4"/>'
    yield _text(left + 12, at + 24, "none is faster and cheaper")


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
