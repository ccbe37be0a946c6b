"""A sweep as a picture: time against cost, and the front, in SVG that needs nothing else; and as a
page in which the picture and its table point at each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from neuronjax.display import duration_within
from neuronjax.planning import drawing
from neuronjax.planning.drawing import LogScale
from neuronjax.planning.sweep import Point, Sweep

_WIDTH, _HEIGHT = 900, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 230, 40, 60
_COLOURS = ("#1f6feb", "#d1453b", "#2a9d57", "#8e44ad", "#e08a00", "#0f8b8d", "#6b7280", "#b0287a")


def svg(sweep: Sweep) -> str:
    """The picture; without a point that has an estimate it says so."""
    points = [point for point in sweep.points if point.estimate and point.cost > 0]
    head = drawing.head(_WIDTH, _HEIGHT)
    title = drawing.text(_LEFT, 24, sweep.workload, size=15)
    if not points:
        return f"{head}{title}{drawing.text(_LEFT, 80, 'nothing could be estimated')}</svg>\n"
    times = [bound / 1e6 for point in points for bound in _bounds(point)]
    x = LogScale(times, _LEFT, _WIDTH - _RIGHT)
    y = LogScale([point.cost for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        head,
        title,
        *drawing.axes(x, y, "step time, ms", sweep.cost_unit),
        _front(sweep.front, x, y),
    ]
    targets = list(dict.fromkeys(point.target for point in points))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(targets)}
    parts += [_bar(point, x, y, colours[point.target]) for point in points]
    parts += [_dot(point, x, y, colours[point.target]) for point in points]
    parts += _labels(sweep.front, x, y)
    parts += _legend(colours)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bounds(point: Point) -> tuple[float, float]:
    """The range of its step in ns."""
    assert point.estimate is not None
    return point.estimate.range_ns


def _bar(point: Point, x: LogScale, y: LogScale, colour: str) -> str:
    """A line across the range of its step."""
    low, high = (x.at(bound / 1e6) for bound in _bounds(point))
    return (
        f'<path d="M{low:.1f} {y.at(point.cost):.1f}H{high:.1f}" stroke="{colour}" '
        'stroke-opacity="0.4" stroke-width="2"/>'
    )


def _front(front: Sequence[Point], x: LogScale, y: LogScale) -> str:
    places = " ".join(f"{x.at(p.time_ns / 1e6):.1f},{y.at(p.cost):.1f}" for p in front)
    return f'<polyline points="{places}" fill="none" stroke="#9ca3af" stroke-dasharray="5 4"/>'


def _labels(front: Sequence[Point], x: LogScale, y: LogScale) -> Iterator[str]:
    """Mesh and batch of the points on the front, but for those that would lie on each other."""
    reached: list[tuple[float, float]] = []
    for point in front:
        left, top = x.at(point.time_ns / 1e6) + 9, y.at(point.cost) - 8
        words = point.label.removeprefix(point.target).strip()
        if words and all(abs(top - other) > 13 or abs(left - at) > 150 for at, other in reached):
            reached.append((left, top))
            yield drawing.text(left, top, words)


def html(sweep: Sweep) -> str:
    """The picture with a table of all points, as a page without network."""
    front = set(map(id, sweep.front))
    rows = "".join(
        f'<tr data-point="{escape(point.label)}"><td>{"*" if id(point) in front else ""}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(point))
        + "</tr>"
        for point in sweep.points
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in (*_HEADS, sweep.cost_unit, ""))
    return (
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{escape(sweep.workload)}'
        f"</title><style>{_STYLE}</style><main>{svg(sweep)}<div><table><tr>{heads}</tr>{rows}"
        f"</table></div></main><script>{_SCRIPT}</script></html>\n"
    )


def _cells(point: Point) -> Iterator[str]:
    yield from (point.target, point.mesh or "–", str(point.batch or "–"), point.dtype or "–")
    if point.estimate is None:
        yield from ("–", "–", "–", point.error)
    else:
        yield from duration_within(point.time_ns, *_bounds(point))
        yield f"{point.cost:.4g}"
        yield "" if point.usable else "does not fit"


_HEADS = ("", "target", "mesh", "batch", "dtype", "step", "80 % range")

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


def _dot(point: Point, x: LogScale, y: LogScale, colour: str) -> str:
    """Hollow where it does not fit; its description appears under the mouse."""
    fill = colour if point.usable else "white"
    time, times = duration_within(point.time_ns, *_bounds(point))
    note = f"{point.label}: {time} ({times}), {point.cost:.4g}"
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
        yield drawing.text(left + 12, at + 4, name)
    at = _TOP + 20 * len(colours) + 14
    yield f'<circle cx="{left}" cy="{at}" r="5" fill="white" stroke="#111827"/>'
    yield drawing.text(left + 12, at + 4, "does not fit the memory")
    yield f'<path d="M{left - 6} {at + 20}h14" stroke="#9ca3af" stroke-dasharray="5 4"/>'
    yield drawing.text(left + 12, at + 24, "none is faster and cheaper")
    yield f'<path d="M{left - 6} {at + 40}h14" stroke="#111827" stroke-opacity="0.4"/>'
    yield drawing.text(left + 12, at + 44, "80 % of measurements")
