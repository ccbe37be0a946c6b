"""Times of a kernel over the values of its parameters, such as the sizes of its tiles."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from neuronjax.display import Displayed, Table, counted, duration, percent
from neuronjax.errors import KernelError, NeuronError
from neuronjax.nki.kernel import kernel_of
from neuronjax.nki.profiling import benchmark
from neuronjax.timing.timeline import Timeline

_ROW, _LABELS, _BARS = 22, 260, 420
"""Pixels: the height of a bar, the width of the words before it, the length of the longest."""


@dataclass(frozen=True)
class Point:
    """The values of one combination, and the kernel's time; or why there is none."""

    values: Mapping[str, object]
    time: Timeline | None
    reason: str = ""

    @property
    def total_ns(self) -> float:
        """The time; infinite if there is none."""
        return math.inf if self.time is None else self.time.total_ns

    @property
    def name(self) -> str:
        """The values as they would be written in a call."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True)
class Sweep(Displayed):
    """A kernel with every combination of values."""

    kernel: str
    points: Sequence[Point]

    @property
    def timed(self) -> list[Point]:
        """The combinations that the chip takes."""
        return [point for point in self.points if point.time is not None]

    @property
    def best(self) -> Point:
        """The fastest. ``KernelError``: none is possible; the message says why the first is not."""
        if not self.timed:
            raise KernelError(f"{self.kernel} cannot run: {self.points[0].reason}")
        return min(self.timed, key=lambda point: point.total_ns)

    def parts(self) -> Iterator[str | Table]:
        """A table with the fastest marked."""
        yield Table(
            rows=[self._row(point) for point in self.points],
            head=("", "", "time", "busiest", "instructions, or why not"),
            title=f"{self.kernel}: {counted(len(self.points), 'combination')}",
        )

    def _row(self, point: Point) -> tuple[str, ...]:
        time = point.time
        if time is None:
            return "", point.name, "", "", point.reason
        busiest = max(time.busy_ns, key=lambda name: time.busy_ns[name])
        share = percent(time.busy_ns[busiest], time.total_ns)
        mark = "*" if point is self.best else ""
        count = f"{time.instruction_count:,}"
        return mark, point.name, duration(time.total_ns), f"{busiest} {share}", count

    def svg(self) -> str:
        """A bar for each combination that is possible."""
        height = _ROW * len(self.timed)
        rows = "".join(self._bar(number, point) for number, point in enumerate(self.timed))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _BARS + 90}" '
            f'height="{height}" font-family="sans-serif" font-size="12">{rows}</svg>'
        )

    def _bar(self, number: int, point: Point) -> str:
        longest = max(other.total_ns for other in self.timed)
        width = _BARS * point.total_ns / longest
        colour = "#2a7" if point is self.best else "#68a"
        text = number * _ROW + 15
        return (
            f'<text x="{_LABELS - 8}" y="{text}" text-anchor="end">{escape(point.name)}</text>'
            f'<rect x="{_LABELS}" y="{number * _ROW + 3}" width="{width:.1f}" height="16" '
            f'fill="{colour}"/><text x="{_LABELS + width + 6:.1f}" y="{text}">'
            f"{duration(point.total_ns)}</text>"
        )

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.svg()

    def write(self, folder: str | Path) -> None:
        """Writes the table and the picture to ``sweep.txt`` and ``sweep.svg``."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / "sweep.txt").write_text(f"{self}\n")
        (place / "sweep.svg").write_text(self.svg())


def _reason(error: Exception) -> str:
    """The first line of an error; of the findings about a kernel, the first."""
    heading, *rest = str(error).splitlines() or [type(error).__name__]
    return rest[0].strip() if heading.endswith(":") and rest else heading


def sweep(
    kernel: Callable[..., object],
    /,
    *arguments: object,
    over: Mapping[str, Sequence[object]],
    target: str | None = None,
    **keywords: object,
) -> Sweep:
    """Times of the kernel, as `benchmark` gives them, for every combination of the values that
    `over` has for its parameters: ``sweep(kernel, x, over={"rows": [64, 128]})``.

    What the chip does not take is a combination without a time.

    KernelError: `over` is empty, or names what is no parameter of the kernel.
    """
    kernel = kernel_of(kernel)
    name, parameters = kernel.function.__name__, inspect.signature(kernel.function).parameters
    is_named = isinstance(over, Mapping) and all(
        isinstance(values, Iterable) and not isinstance(values, str) for values in over.values()
    )
    over = {parameter: tuple(values) for parameter, values in over.items()} if is_named else {}
    if not over or not all(over.values()):
        raise KernelError(f"{name}: `over` has no values; pass lists by the names of parameters.")
    for unknown in over.keys() - parameters.keys():
        raise KernelError(f"{name} has no parameter {unknown!r}; it has {', '.join(parameters)}.")
    points = []
    for values in itertools.product(*over.values()):
        chosen = dict(zip(over, values, strict=True))
        try:
            time = benchmark(kernel, *arguments, target=target, **keywords, **chosen)
        except (NeuronError, AssertionError) as error:
            points.append(Point(chosen, None, _reason(error)))
        else:
            points.append(Point(chosen, time))
    return Sweep(name, points)
