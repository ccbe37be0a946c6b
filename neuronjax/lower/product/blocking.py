"""The blocks of a product: what is stationary, what stays in SBUF, in which order it runs.

Bytes that move between HBM and SBUF decide, then columns that pass through the array. Sums of rates
are rough: only the order of alternatives matters.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neuronjax.lower.rates import Rates
from neuronjax.lower.tuning import Tuning
from neuronjax.machine.specs import MOVING_COLUMNS, PARTITIONS
from neuronjax.machine.timings import INSTRUCTION_CYCLES

WIDTH = MOVING_COLUMNS
"""Columns of either side that are multiplied with each other before sums leave PSUM."""


class Level(enum.IntEnum):
    """The loop in which the panel of an operand is loaded."""

    ONCE = 0
    OUTER = 1
    INNER = 2
    STEP = 3


@dataclass(frozen=True, slots=True)
class Side:
    """An operand as the choice sees it."""

    #: Columns: elements that are not contracted.
    width: int
    #: Bytes per element in HBM.
    stored_bytes: int
    #: Whether it is transposed through the array while it is loaded.
    is_turned: bool
    #: Panel of so many columns -> bytes per partition.
    panel: Callable[[int], int]
    #: The same of the largest part of a panel that is loaded for one step.
    part: Callable[[int], int]
    #: Columns at most -> those of the largest block that dimensions are cut into.
    block: Callable[[int], int]
    #: Panel of so many columns -> elements that are loaded for each column and contracted element:
    #: less than 1 where windows overlap.
    density: Callable[[int], float]
    #: Columns beside each other in memory; 1: it runs along contracted elements there.
    run: int = 1
    #: Whether GpSimd makes its descriptors while the program runs, which also starts stores: panels
    #: are not loaded before results of earlier ones are there.
    is_late: bool = False

    def element_ns(self, width: int, rates: Rates) -> float:
        """Time of a column of a contracted element, in panels of so many columns."""
        is_cut = self.run > 1 and width < self.width
        extra = rates.descriptor_ns / min(self.run, width) if is_cut else 0.0
        return self.stored_bytes * self.density(width) / rates.bytes_per_ns + extra


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choice. `outer_is_stationary`: the outer loops run over the stationary operand."""

    left_is_stationary: bool
    outer_is_stationary: bool
    outer_width: int
    inner_width: int
    outer_level: Level
    inner_level: Level
    #: Panels of the outer operand at a time.
    outer_slots: int = 1

    @property
    def levels(self) -> tuple[Level, Level]:
        """Levels of the stationary and the moving operand."""
        pair = (self.outer_level, self.inner_level)
        return pair if self.outer_is_stationary else (pair[1], pair[0])


def schedule(
    left: Side,
    right: Side,
    depth: int,
    passes: float,
    runs: tuple[int, int],
    budget: int,
    rates: Rates,
    tuning: Tuning,
    cores: int = 1,
) -> Schedule:
    """The cheapest schedule: `depth` contracted elements, `budget` bytes of a partition.

    `runs` are contiguous runs that results are stored in, if left or if right is stationary.
    `cores` share the blocks of the outer operand, and meet in HBM then: a store and a load, alone.
    Prices are those of the busiest.
    """
    priced: list[tuple[float, int, int, bool, bool, _Order]] = []
    for left_is_stationary in (True, False):
        still, moving = (left, right) if left_is_stationary else (right, left)
        stores = runs[0 if left_is_stationary else 1] * rates.run_ns(0)
        for outer_is_stationary in (True, False):
            outer, inner = (still, moving) if outer_is_stationary else (moving, still)
            for order in _orders(outer, inner, budget, cores, tuning):
                own = share_of_core(outer.width, order[0], cores)
                rows, columns = (own, inner.width) if outer_is_stationary else (inner.width, own)
                tall = math.ceil(rows / PARTITIONS)
                turned, transfers = _loading(outer, inner, order, own / outer.width, rates)
                array = tall * max(columns, INSTRUCTION_CYCLES) * passes + turned * max(
                    1, passes // 2
                )
                array *= math.ceil(depth / PARTITIONS) * rates.column_ns
                waiting = _waiting(outer, order, own / outer.width, rates) * depth
                late = _late_panels(outer, inner, order)
                waiting = max(waiting, transfers * depth) if late else waiting
                price = max(array + waiting, transfers * depth) + transfers * depth / 16
                price += stores * own / outer.width + columns * tall
                price += 2 * rates.transfer_ns if own < outer.width else 0.0
                price += late * rates.transfer_ns
                # Of equals, the one whose products begin first.
                before = _first_columns(inner, order)
                sides = (left_is_stationary, outer_is_stationary)
                priced.append((price, before, len(priced), *sides, order))
    *_, left_is_stationary, outer_is_stationary, order = min(priced)
    return Schedule(left_is_stationary, outer_is_stationary, *order)


def _late_panels(outer: Side, inner: Side, order: _Order) -> int:
    """Panels that are loaded one after the other, each behind results of an earlier one."""
    loaded = zip((outer, inner), order, _loaded(outer, inner, order), strict=False)
    return sum(math.ceil(columns / width) for side, width, columns in loaded if side.is_late)


def _first_columns(inner: Side, order: _Order) -> int:
    """Columns of the inner operand that are there before the first products end.

    Panels of several steps are loaded step by step, others some columns at a time.
    """
    _, columns, _, level, _ = order
    is_whole = level is Level.ONCE and inner.panel(inner.width) > inner.part(inner.width)
    return inner.width if is_whole else columns


def _waiting(outer: Side, order: _Order, share: float, rates: Rates) -> float:
    """Returns how long the array waits for panels of the outer operand, in ns for each contracted
    element: there may be room for one at a time."""
    width, _, level, _, slots = order
    is_alone = level is Level.OUTER and slots == 1
    return outer.width * share * outer.element_ns(width, rates) if is_alone else 0.0


def _loading(
    outer: Side, inner: Side, order: _Order, share: float, rates: Rates
) -> tuple[float, float]:
    """The columns turned for one contracted element, and the time of transfers in ns."""
    turned, transfers = 0.0, 0.0
    shares = (share, 1.0 if order[3] is Level.ONCE else share)
    loaded = _loaded(outer, inner, order)
    for side, width, columns, part in zip((outer, inner), order, loaded, shares, strict=False):
        turned += columns * part * side.is_turned
        transfers += columns * part * side.element_ns(width, rates)
    return turned, transfers


_Order = tuple[int, int, Level, Level, int]
"""Widths of the outer and the inner operand, their levels, and slots: as in `Schedule`."""


def share_of_core(width: int, block: int, cores: int) -> int:
    """Columns of the busiest core, if blocks of so many are shared out."""
    first = min(width, math.ceil(max(1, width // block) / cores) * block)
    return width if cores == 1 else max(first, width - first)


def _loaded(outer: Side, inner: Side, order: _Order) -> tuple[int, int]:
    """Columns of both operands that are loaded."""
    width, columns, outer_level, inner_level, _ = order
    if outer_level is Level.STEP:
        steps = math.ceil(outer.width / width)
        return outer.width * math.ceil(inner.width / columns), inner.width * steps
    if inner_level is Level.ONCE:
        return outer.width, inner.width
    return outer.width, inner.width * math.ceil(outer.width / width)


def _orders(outer: Side, inner: Side, budget: int, cores: int, tuning: Tuning) -> Iterator[_Order]:
    """Orders that fit."""
    narrow = inner.block(WIDTH)
    for most in sorted({outer.width, math.ceil(outer.width / cores)}, reverse=True):
        step = outer.block(min(WIDTH, most))
        if inner.panel(inner.width) + 2 * outer.panel(step) <= budget:
            yield step, narrow, Level.OUTER, Level.ONCE, 2
        width = step
        if outer.panel(width) + 2 * inner.panel(narrow) <= budget:
            while width < min(most, tuning.panel_columns):
                wider = min(2 * width, tuning.panel_columns, most)
                if outer.panel(wider) + 2 * inner.panel(narrow) > budget:
                    break
                width = wider
            twice = 2 * (outer.panel(width) + inner.panel(narrow)) <= budget
            yield width, narrow, Level.OUTER, Level.INNER, 1 + twice
        for width in (step, min(256, step), min(128, step)):
            if outer.panel(width) <= budget - max(3 * tuning.chunk_bytes, 2 * inner.part(narrow)):
                yield width, narrow, Level.OUTER, Level.STEP, 1
                break
        yield (*_by_steps(outer, inner, step, narrow, budget), Level.STEP, Level.STEP, 1)


def _by_steps(outer: Side, inner: Side, width: int, columns: int, budget: int) -> tuple[int, int]:
    """Columns of both sides, at most so many, of which two parts have room beside each other."""
    while 2 * (outer.part(width) + inner.part(columns)) > budget and max(width, columns) > 1:
        if width > 1 and (outer.part(width) >= inner.part(columns) or columns == 1):
            width = math.ceil(width / 2)
        else:
            columns = math.ceil(columns / 2)
    return width, columns
