"""Two kernels side by side: what differs in time, counters and instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronjax.display import Displayed, Table, duration
from neuronjax.errors import shown_line
from neuronjax.nki.gym.evaluation import Document

LEAST_CHANGE = 0.005
"""The share of itself by which a counter has to change to be shown."""

_TIMES = ("device_ns", "kernel_ns", "essential_ns")


@dataclass(frozen=True, repr=False)
class Difference(Displayed):
    """Two evaluations, as JSON has them."""

    before: Document
    after: Document

    @property
    def sides(self) -> tuple[Document, Document]:
        """The evaluations before and after."""
        return self.before, self.after

    def to_json(self) -> Document:
        """Both evaluations, and the numbers of each that differ."""
        return {
            "before": dict(self.before),
            "after": dict(self.after),
            "instructions": dict(self._changed("instructions", 0.0)),
            "counters": dict(self._changed("counters", LEAST_CHANGE)),
        }

    def parts(self) -> Iterator[str | Table]:
        for word, side in zip(("before", "after"), self.sides, strict=True):
            reason = f": {side['reason']}" if side["reason"] else ""
            place = f"{shown_line(side['kernel'])} on {side['target']}"
            yield f"{word}: {place}: {side['status']}{reason}"
        if any(side["times"] is None for side in self.sides):
            return
        yield Table([*self._times()], head=("time", "before", "after", "change"))
        for name, least in (("instructions", 0.0), ("counters", LEAST_CHANGE)):
            rows = [
                (key, *(f"{number:,.6g}" for number in pair), _change(*pair))
                for key, pair in self._changed(name, least)
            ]
            if rows:
                yield Table(rows, head=(name, "before", "after", "change"))
            else:
                yield f"The {name} are the same."

    def _times(self) -> Iterator[tuple[str, ...]]:
        old, new = (side["times"] for side in self.sides)
        for name in _TIMES:
            pair = old[name], new[name]
            yield (name.removesuffix("_ns"), *map(duration, pair), _change(*pair))
        pairs = [f"{times['bound']} x{times['distance'] or 0:.2f}" for times in (old, new)]
        yield "bound", *pairs, ""

    def _changed(self, name: str, least: float) -> Iterator[tuple[str, tuple[float, float]]]:
        old, new = (side[name] for side in self.sides)
        for key in sorted({*old, *new}):
            pair = old.get(key, 0), new.get(key, 0)
            if abs(pair[1] - pair[0]) > least * abs(pair[0]):
                yield key, pair


def _change(before: float, after: float) -> str:
    if not before:
        return "new" if after else ""
    return f"{100 * (after / before - 1):+.1f} %" if after else "gone"
