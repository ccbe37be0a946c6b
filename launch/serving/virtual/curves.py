"""Curves over load: SVG, and a page around it."""

import math
from collections.abc import Callable, Sequence

from launch.serving.virtual.summary import Summary

_WIDTH, _HEIGHT, _MARGIN = 420, 260, 48
_PANELS: tuple[tuple[str, Callable[[Summary], Sequence[float]]], ...] = (
    ("time to first token, s", lambda s: s.ttft),
    ("time per token, s", lambda s: s.tpot),
    ("tokens per second", lambda s: (s.tokens_per_second,)),
    ("share within the objective", lambda s: (s.within_slo,)),
)
_COLOURS = ("#2563eb", "#d97706", "#dc2626")
_NAMES = ("p50", "p90", "p99")
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Traffic</title>
<style>
body { font: 14px sans-serif; margin: 1em; } svg { max-width: 100%; height: auto; }
circle:hover { stroke: black; stroke-width: 2; }
#tip { position: fixed; padding: 4px 8px; background: #222; color: white; border-radius: 4px;
  pointer-events: none; visibility: hidden; }
</style>
<p>p50 is blue, p90 amber, p99 red; point at a mark for its number.</p>
{curves}<div id="tip"></div>
<script>
const tip = document.getElementById("tip");
for (const mark of document.querySelectorAll("circle")) {
  const text = mark.querySelector("title").textContent;
  mark.querySelector("title").remove();
  mark.setAttribute("aria-label", text);
  mark.onpointermove = (event) => {
    tip.textContent = text;
    tip.style.visibility = "visible";
    tip.style.left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 12 + "px";
  };
  mark.onpointerleave = () => { tip.style.visibility = "hidden"; };
}
</script>
</html>
"""


def curves(summaries: Sequence[Summary]) -> str:
    """Curves over load as SVG; p50 is blue, p90 amber, p99 red."""
    panels = [_panel(index, *panel, summaries) for index, panel in enumerate(_PANELS)]
    size = f'viewBox="0 0 {2 * _WIDTH} {2 * _HEIGHT}" width="{2 * _WIDTH}" height="{2 * _HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(panels)}</svg>\n'
    )


def page(summaries: Sequence[Summary]) -> str:
    """The curves as an HTML page that shows the number of the point under the pointer."""
    return _PAGE.replace("{curves}", curves(summaries))


def _panel(
    index: int,
    title: str,
    values: Callable[[Summary], Sequence[float]],
    summaries: Sequence[Summary],
) -> str:
    left, top = index % 2 * _WIDTH + _MARGIN, index // 2 * _HEIGHT + _MARGIN // 2 + 8
    width, height = _WIDTH - 1.5 * _MARGIN, _HEIGHT - 1.5 * _MARGIN
    ordered = sorted(summaries, key=lambda summary: summary.rate)
    most_x = max(summary.rate for summary in ordered)
    points = [[v for v in values(summary) if not math.isnan(v)] for summary in ordered]
    most_y = max((max(row) for row in points if row), default=1.0) or 1.0
    lines = []
    for line in range(max(map(len, points))):
        places = [
            (
                (left + width * summary.rate / most_x, top + height * (1 - row[line] / most_y)),
                summary,
                row,
            )
            for summary, row in zip(ordered, points, strict=True)
            if len(row) > line
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _, _ in places)
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{_COLOURS[line]}" stroke-width="2"/>'
        )
        name = f"{_NAMES[line]} " if len(points[0]) > 1 else ""
        lines += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[line]}"><title>'
            f"{name}{title}: {row[line]:.4g} at {summary.rate:g} requests per second"
            "</title></circle>"
            for (x, y), summary, row in places
        ]
    frame = f'<rect x="{left}" y="{top}" width="{width}" height="{height}"'
    return (
        f'{frame} fill="none" stroke="#999"/>{"".join(lines)}'
        f'<text x="{left}" y="{top - 6}">{title}, up to {most_y:.3g}</text>'
        f'<text x="{left + width}" y="{top + height + 16}" text-anchor="end">'
        f"{most_x:g} requests per second</text>"
    )
