"""Whether instructions that nothing orders touch the same elements of HBM, one of them writing.

An access in loops is a set of offsets: base + Σ stride · step, each step from 0 to its size - 1,
whatever belongs to loops or to the walk. Two sets meet where the difference of their bases is such
a sum of both: strides are tried from the greatest down, which leaves few steps of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronjax.program.instruction import Instruction, Use
from neuronjax.program.operand import Access, Buffer, Memory, RegisterOffset
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import children

_MOST_STEPS = 2_000
_MOST_PAIRS = 20_000
_INDIRECT = "table"
"""The field of what indices choose from."""

Same = Callable[[Buffer, Buffer], bool | None]
"""Whether two buffers of different names begin at one place; None: they may share memory."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Elements of a buffer that an instruction touches while the loops about it run.

    `terms` are strides and sizes; None: registers know. Indices may choose fewer than all.
    """

    buffer: Buffer
    is_write: bool
    base: int
    terms: tuple[tuple[int, int], ...] | None
    is_exact: bool


def touches(nodes: Iterable[Node]) -> list[Touch]:
    """What nodes touch in HBM, each once."""
    return list(dict.fromkeys(_touches(nodes, {})))


def _touches(nodes: Iterable[Node], trips: Mapping[str, int | None]) -> Iterator[Touch]:
    for node in nodes:
        if isinstance(node, Instruction):
            for use in node.uses():
                if isinstance(use.operand, Access) and use.operand.memory is Memory.HBM:
                    yield _touch(use, use.operand, trips)
        else:
            own = {node.variable: node.most_trips} if isinstance(node, Loop) else {}
            yield from _touches(children(node), {**trips, **own})


def _touch(use: Use, access: Access, trips: Mapping[str, int | None]) -> Touch:
    is_write, offset = use.role.is_write, access.offset
    if isinstance(offset, RegisterOffset) or access.buffer.slots > 1:
        return Touch(access.buffer, is_write, 0, None, False)
    terms = [(dim.stride, dim.size) for dim in access.dims]
    for name, factor in offset.terms:
        count = trips.get(name)
        if count is None:
            return Touch(access.buffer, is_write, 0, None, False)
        terms.append((factor, count))
    base = offset.base + sum(stride * (size - 1) for stride, size in terms if stride < 0)
    kept = tuple((abs(stride), size) for stride, size in terms if stride and size > 1)
    return Touch(access.buffer, is_write, base, kept, use.field != _INDIRECT)


def conflicts(one: Sequence[Touch], other: Sequence[Touch], same: Same) -> bool | None:
    """Whether they touch the same element and one of them writes it; None: nobody knows."""
    unsure = False
    pairs = 0
    for left in one:
        for right in other:
            if not (left.is_write or right.is_write):
                continue
            found = _meet(left, right, same)
            pairs += 1
            if found or pairs > _MOST_PAIRS:
                return True if found else None
            unsure = unsure or found is None
    return None if unsure else False


def _meet(one: Touch, other: Touch, same: Same) -> bool | None:
    if one.buffer.name != other.buffer.name:
        begins = same(one.buffer, other.buffer)
        if not begins:
            return begins
        if one.buffer.dtype.storage_bits != other.buffer.dtype.storage_bits:
            return None
    if one.terms is None or other.terms is None:
        return None
    met = _Sum.of(one, other).reaches(0, _distance(one, other))
    return None if met and not (one.is_exact and other.is_exact) else met


def _distance(one: Touch, other: Touch) -> int:
    """What a sum of terms of both must come to: steps of `one` count down from its last element."""
    return one.base + sum(stride * (size - 1) for stride, size in one.terms or ()) - other.base


@dataclass(slots=True)
class _Sum:
    """Sums of strides times steps; the greatest stride first, of what follows all are known."""

    terms: list[tuple[int, int]]
    #: From each term on: the greatest sum, what divides all of them, and whether none is left out.
    most: list[int] = field(default_factory=list)
    divisors: list[int] = field(default_factory=list)
    dense: list[bool] = field(default_factory=list)
    steps: int = 0

    @classmethod
    def of(cls, one: Touch, other: Touch) -> _Sum:
        """The sums of two touches."""
        sizes: dict[int, int] = {}
        for stride, size in (*(one.terms or ()), *(other.terms or ())):
            sizes[stride] = sizes.get(stride, 1) + size - 1
        return cls(sorted(sizes.items(), reverse=True))

    def __post_init__(self) -> None:
        most, divisor, dense = 0, 0, True
        self.most, self.divisors, self.dense = [most], [divisor], [dense]
        for stride, size in reversed(self.terms):
            dense = dense and stride <= most + 1
            most, divisor = most + stride * (size - 1), math.gcd(divisor, stride)
            self.most.append(most)
            self.divisors.append(divisor)
            self.dense.append(dense)
        self.most.reverse()
        self.divisors.reverse()
        self.dense.reverse()

    def reaches(self, position: int, wanted: int) -> bool | None:
        """Whether terms from a position on come to `wanted`; None: that takes too long to say."""
        if not 0 <= wanted <= self.most[position]:
            return False
        if self.dense[position] or not wanted:
            return True
        if wanted % self.divisors[position]:
            return False
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return None
        stride, size = self.terms[position]
        least = max(0, -(-(wanted - self.most[position + 1]) // stride))
        found: bool | None = False
        for step in range(least, min(size - 1, wanted // stride) + 1):
            found = self.reaches(position + 1, wanted - step * stride)
            if found is not False:
                return found
        return found
