"""How far a predicted time is to be trusted: the range in which four of five measurements lie.

`validation/results.json`, which `neuronjax validate --models` writes, has the public measurements
with what the model predicts by constants that were fitted to the others alone. Those of programs of
the same class say how far a new prediction may be off; what it rests on besides widens its range.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scipy.special import stdtrit

RESULTS = Path(__file__).parent / "validation" / "results.json"
"""The committed results of `neuronjax validate --models`."""

COVERAGE = 0.8
"""The share of measurements that lie within a range."""
_TAIL = (1 - COVERAGE) / 2
FEWEST_POINTS = 10
"""Points of a class that says a range: of nine others, the outermost bound 80 %."""
_FEWEST_OF_CHIP = 3
"""Points of a chip whose median says where the chip lies among the others."""

COLLECTIVES = "collectives"
PROGRAMS = "whole programs"
PARENTS: Mapping[str, str] = {
    "decoding on one core": "decoding",
    "decoding on several cores": "decoding",
    "forward passes on one core": "forward passes",
    "forward passes on several cores": "forward passes",
    "decoding": PROGRAMS,
    "forward passes": PROGRAMS,
    "training steps": PROGRAMS,
    "single kernels": PROGRAMS,
}
"""Class of programs -> the wider one that says the range where it has too few points."""

WEIGHTS_BOUND = 1 / 6
"""A program with less arithmetic for each byte of HBM than this share of what its chip can do is
bound by its weights and its cache. Decoding 32 rows has a tenth, convolutions of one image have a
quarter."""

HOST_WORK = 1.0
"""The host's own work on what no engine can, which is not timed, over its transfers, which are: an
assumption, as nothing is published. It only makes a step slower."""
DEPTH_ERROR = 0.03
"""The error of a deep model's time, which follows from two shallow ones: at most 2.6 % of what the
whole model takes, for encoders of 6 and 12 layers, and prompts and tokens of 16."""
ASSUMED_RECORD_ERROR = 0.03
"""The error where a chip's record has entries that are not published, but taken from the chip
before it: without its pairs of operands a training step on trn3 takes 2.6 % longer, and without the
others it changes by less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What the trust in a program's time depends on, all of it read off the program."""

    chip: str
    ranks: int = 1
    #: FLOPs of products for each byte of HBM, over the FLOPs a byte at which the Tensor engine and
    #: HBM would be equally busy.
    intensity: float = 0.0
    #: Whether it computes gradients of its weights, or updates the state of an optimizer.
    is_training: bool = False
    #: Whether it is a collective that has the chip to itself.
    is_collective: bool = False
    #: Whether it runs one kernel, once.
    is_one_kernel: bool = False
    #: Parts of its time in which collectives and the host are busy.
    collective_share: float = 0.0
    host_share: float = 0.0
    #: The part in which the Tensor engine is busy, and how many times as fast as BF16 it takes the
    #: program's arguments in FP8 or FP4.
    tensor_share: float = 0.0
    narrow_rate: float = 1.0
    #: Whether its numbers are extrapolated from two shallower models.
    is_extrapolated: bool = False
    #: Whether the user changed the machine's records.
    is_changed: bool = False
    #: Entries of the chip's record that are not published.
    assumed: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        """The narrowest class that it belongs to. Replicas that send nothing are one core each."""
        if self.is_collective:
            return COLLECTIVES
        if self.is_training:
            return "training steps"
        if self.is_one_kernel:
            return "single kernels"
        kind = "decoding" if self.intensity < WEIGHTS_BOUND else "forward passes"
        return f"{kind} on {'several cores' if self.collective_share else 'one core'}"


class Measured(NamedTuple):
    """A public measurement, and the error of what is predicted without it."""

    name: str
    class_name: str
    chip: str
    ranks: int
    #: The natural logarithm of predicted over published.
    error: float


class Range(NamedTuple):
    """The range in which four of five measurements would lie, and why."""

    low_ns: float
    high_ns: float
    basis: str


def read_measured(results: Mapping[str, object]) -> tuple[Measured, ...]:
    """The points of results in JSON that are predicted without having been fitted to."""
    points = results["points"]
    assert isinstance(points, list)
    return tuple(
        Measured(
            point["name"], point["class"], point["chip"], point["ranks"],
            math.log(point["ratio_left_out"]),
        )
        for point in points
        if point["ratio_left_out"] is not None and not point["left_out"]
        and not point["upper_bound"]
    )  # fmt: skip


@functools.cache
def measured() -> tuple[Measured, ...]:
    """The measurements of the committed results."""
    return read_measured(json.loads(RESULTS.read_text(encoding="utf-8")))


def classes(name: str) -> Iterator[str]:
    """A class and those that it is part of, the narrowest first."""
    yield name
    while name in PARENTS:
        name = PARENTS[name]
        yield name


def members(name: str, points: Sequence[Measured]) -> list[Measured]:
    """The points of a class and of those that are parts of it."""
    return [point for point in points if name in classes(point.class_name)]


def error_range(errors: Sequence[float]) -> tuple[float, float]:
    """The errors between which four of five further ones lie, nothing among them.

    Positions in the order of errors count from 1 to n, and the tail of a share p begins at
    p (n + 1): what is still unknown falls into each of the n + 1 gaps with the same probability.
    """
    ordered = sorted(errors)

    def at(share: float) -> float:
        position = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
        before = min(math.floor(position), len(ordered) - 2)
        return ordered[before] + (position - before) * (ordered[before + 1] - ordered[before])

    return min(0.0, at(_TAIL)), max(0.0, at(1 - _TAIL))


def range_of(time_ns: float, traits: Traits, points: Sequence[Measured] | None = None) -> Range:
    """The range of a predicted time in ns, by the given points or the committed ones."""
    points = measured() if points is None else points
    name, own = _with_points(traits.class_name, points)
    below, above = error_range([point.error for point in own])
    slower, faster = [-below], [above]
    reasons = []
    for widening in _widenings(traits, own, points):
        slower.append(widening.slower)
        faster.append(widening.faster)
        reasons.append(widening.reason)
    own_name = traits.class_name
    fallback = "" if name == own_name else f", as there are too few for {own_name}"
    wider = f"; wider, because {', '.join(reasons)}" if reasons else ""
    return Range(
        time_ns * math.exp(-math.hypot(*faster)),
        time_ns * math.exp(math.hypot(*slower)),
        f"{name}, {len(own)} public points{fallback}{wider}",
    )


def _with_points(name: str, points: Sequence[Measured]) -> tuple[str, list[Measured]]:
    """The narrowest class around one that has enough points; the widest has them."""
    for wider in classes(name):
        own = members(wider, points)
        if len(own) >= FEWEST_POINTS:
            break
    return wider, own


class _Widening(NamedTuple):
    """An error that does not depend on the class's, in logarithms: how much slower and faster."""

    slower: float
    faster: float
    reason: str


def _both(width: float, reason: str) -> _Widening:
    return _Widening(width, width, f"{reason} (±{math.expm1(width):.0%})")


def _widenings(
    traits: Traits, own: Sequence[Measured], points: Sequence[Measured]
) -> Iterator[_Widening]:
    """What the time rests on that the points of its class do not."""
    if traits.is_changed:
        yield _both(chip_spread(points), "the machine's records were changed")
    elif all(point.chip != traits.chip for point in own):
        yield _both(chip_spread(points), f"none of them is of {traits.chip}")
    if traits.assumed:
        count = len(traits.assumed)
        yield _both(ASSUMED_RECORD_ERROR, f"{count} entries of its record are assumed")
    most = max(point.ranks for point in own)
    if traits.ranks > most and traits.collective_share:
        below, above = error_range([point.error for point in members(COLLECTIVES, points)])
        width = math.log2(traits.ranks / most) * traits.collective_share * max(-below, above)
        yield _both(width, f"points have at most {most} cores")
    if traits.is_extrapolated:
        yield _both(DEPTH_ERROR, "layers are extrapolated")
    if traits.narrow_rate > 1 and traits.tensor_share:
        slower = math.log1p(traits.tensor_share * (traits.narrow_rate - 1))
        reason = f"no public time is of FP8 or FP4 products (up to +{math.expm1(slower):.0%})"
        yield _Widening(slower, 0.0, reason)
    if traits.host_share:
        slower = math.log1p(HOST_WORK * traits.host_share)
        reason = f"the host's own work is not timed (up to +{math.expm1(slower):.0%})"
        yield _Widening(slower, 0.0, reason)


def chip_spread(points: Sequence[Measured]) -> float:
    """How far a chip without points may lie from those that have some, as a logarithm.

    Student's prediction interval for a further one of normal numbers, from the medians of chips.
    """
    by_chip: dict[str, list[float]] = {}
    for point in members(PROGRAMS, points):
        by_chip.setdefault(point.chip, []).append(point.error)
    medians = [
        statistics.median(errors) for errors in by_chip.values() if len(errors) >= _FEWEST_OF_CHIP
    ]
    count = len(medians)
    factor = float(stdtrit(count - 1, 1 - _TAIL)) * math.sqrt(1 + 1 / count)
    return factor * statistics.stdev(medians)


class Coverage(NamedTuple):
    """How a class's ranges hold: each point by the range of the others."""

    class_name: str
    points: int
    #: Points within the range of the others.
    within: int
    #: The class's range as factors on a prediction.
    low: float
    high: float
    #: Median of the highest over the lowest time of a range, less 1.
    median_width: float


def coverage(points: Sequence[Measured]) -> Iterator[Coverage]:
    """The classes that have enough points without the one that is left out, the widest first."""
    names = dict.fromkeys(name for point in points for name in classes(point.class_name))
    for name in sorted(names, key=lambda name: -len(members(name, points))):
        errors = [point.error for point in members(name, points)]
        if len(errors) < FEWEST_POINTS:
            continue
        ranges = [error_range([*errors[:at], *errors[at + 1 :]]) for at in range(len(errors))]
        held = sum(low <= error <= high for error, (low, high) in zip(errors, ranges, strict=True))
        low, high = error_range(errors)
        widths = [math.expm1(high - low) for low, high in ranges]
        yield Coverage(
            name, len(errors), held, math.exp(-high), math.exp(-low), statistics.median(widths)
        )
