"""How a product is cut up: what is stationary, what stays in SBUF, in which order it runs.

Bytes that move between HBM and SBUF decide, then columns that pass through the array. Prices are
of one core and rough: only the order of alternatives matters.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MOVING = 512
"""Most free elements of the moving operand: one bank of PSUM."""
STATIONARY = 128
"""Rows and columns of the array."""
WIDTH = 512
"""Columns of either side that are multiplied with each other before sums leave PSUM."""
CHUNK_BYTES = 16 * 1024
"""Bytes per partition of one transfer, about: 2 MiB in all."""
_COLUMN_NS = 0.42
_RUN_NS = 3.0
_BYTES_PER_NS = 368.0
_WIDEST = 4096


class Level(enum.IntEnum):
    """Where the panel of an operand is loaded."""

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
    left: Side, right: Side, depth: int, passes: int, runs: tuple[int, int], budget: int
) -> Schedule:
    """The cheapest schedule: `depth` contracted elements, `budget` bytes of a partition.

    `runs` are contiguous runs that results are stored in, if left or if right is stationary.
    """
    priced: list[tuple[float, int, bool, bool, _Order]] = []
    for left_is_stationary in (True, False):
        still, moving = (left, right) if left_is_stationary else (right, left)
        columns = math.ceil(still.width / STATIONARY) * max(moving.width, 64)
        array = math.ceil(depth / STATIONARY) * columns * passes * _COLUMN_NS
        stores = runs[0 if left_is_stationary else 1] * _RUN_NS
        rows = moving.width * math.ceil(still.width / STATIONARY)
        for outer_is_stationary in (True, False):
            outer, inner = (still, moving) if outer_is_stationary else (moving, still)
            for option, columns_loaded in _orders(outer, inner, budget):
                outer_loaded, inner_loaded = columns_loaded
                nbytes = outer_loaded * outer.stored_bytes + inner_loaded * inner.stored_bytes
                turned = outer_loaded * outer.is_turned + inner_loaded * inner.is_turned
                turns = turned * depth / STATIONARY * max(1, passes // 2) * _COLUMN_NS
                price = max(array + turns, nbytes * depth / _BYTES_PER_NS) + stores + rows
                price += nbytes * depth / _BYTES_PER_NS / 16
                priced.append((price, len(priced), left_is_stationary, outer_is_stationary, option))
    _, _, left_is_stationary, outer_is_stationary, option = min(priced)
    return Schedule(left_is_stationary, outer_is_stationary, *option)


_Order = tuple[int, int, Level, Level, int]


def _orders(outer: Side, inner: Side, budget: int) -> Iterator[tuple[_Order, tuple[int, int]]]:
    """Orders that fit, each with the columns of both operands that are loaded."""
    step = min(WIDTH, outer.width)
    narrow = min(WIDTH, inner.width)
    outer_steps = math.ceil(outer.width / WIDTH)
    if inner.panel(inner.width) + 2 * outer.panel(step) <= budget:
        order = (step, narrow, Level.OUTER, Level.ONCE, 2)
        yield order, (outer.width, inner.width)
    width = step
    if outer.panel(width) + 2 * inner.panel(narrow) <= budget:
        while width < min(outer.width, _WIDEST):
            wider = min(2 * width, _WIDEST, outer.width)
            if outer.panel(wider) + 2 * inner.panel(narrow) > budget:
                break
            width = wider
        passes = math.ceil(outer.width / width)
        twice = 2 * (outer.panel(width) + inner.panel(narrow)) <= budget
        yield (
            (width, narrow, Level.OUTER, Level.INNER, 1 + twice),
            (outer.width, inner.width * passes),
        )
    for width in (step, min(256, step), min(128, step)):
        if outer.panel(width) <= budget - max(3 * CHUNK_BYTES, 2 * inner.part(narrow)):
            passes = math.ceil(outer.width / width)
            yield (width, narrow, Level.OUTER, Level.STEP, 1), (outer.width, inner.width * passes)
            break
    loads = outer.width * math.ceil(inner.width / WIDTH), inner.width * outer_steps
    yield (step, narrow, Level.STEP, Level.STEP, 1), loads
