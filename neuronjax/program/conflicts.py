"""Whether unordered instructions touch the same elements of HBM, at least one of them writing.

An access in loops is a set of offsets: base + Σ stride · step, where step runs from 0 to size - 1
of a loop or of a dimension of the access. Two sets intersect if the difference of their bases is
such a sum of the strides of both. Strides are tried from the greatest down, which leaves few
possible steps for each of them.
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
"""The field of operands that are accessed through indices."""

Same = Callable[[Buffer, Buffer], bool | None]
"""Whether two buffers of different names begin at the same address; None: they may overlap."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Elements of a buffer that an instruction touches in all iterations of the enclosing loops.

    `terms` are strides and sizes; None: they depend on registers. With indices, fewer elements may
    be touched, and the touch is not exact.
    """

    buffer: Buffer
    is_write: bool
    base: int
    terms: tuple[tuple[int, int], ...] | None
    is_exact: bool

    @property
    def size(self) -> int | None:
        """How many elements it touches from `base` on, without gaps; None: it has gaps, or nobody
        knows."""
        if self.terms is None or not self.is_exact:
            return None
        size = 1
        for stride, count in sorted(self.terms):
            if stride > size:
                return None
            size += stride * (count - 1)
        return size

    @property
    def last(self) -> int | None:
        """The last element; None if nobody knows."""
        if self.terms is None:
            return None
        return self.base + sum(stride * (count - 1) for stride, count in self.terms)


def touches(nodes: Iterable[Node]) -> list[Touch]:
    """The distinct touches of HBM by nodes."""
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


def conflicts(first: Sequence[Touch], second: Sequence[Touch], same: Same) -> bool | None:
    """Whether both touch the same element and one of them writes it; None if unknown."""
    unsure = False
    pairs = 0
    for a in first:
        for b in second:
            if not (a.is_write or b.is_write):
                continue
            is_conflict = _meet(a, b, same)
            pairs += 1
            if is_conflict or pairs > _MOST_PAIRS:
                return True if is_conflict else None
            unsure = unsure or is_conflict is None
    return None if unsure else False


def _meet(a: Touch, b: Touch, same: Same) -> bool | None:
    if a.buffer.name != b.buffer.name:
        begins = same(a.buffer, b.buffer)
        if not begins:
            return begins
        if a.buffer.dtype.storage_bits != b.buffer.dtype.storage_bits:
            return None
    if a.terms is None or b.terms is None:
        return None
    met = _Sum.of(a, b).reaches(0, _distance(a, b))
    return None if met and not (a.is_exact and b.is_exact) else met


def _distance(a: Touch, b: Touch) -> int:
    """The sum of terms at which both meet; steps of `a` count down from its last element."""
    return a.base + sum(stride * (size - 1) for stride, size in a.terms or ()) - b.base


def is_sum(terms: Iterable[tuple[int, int]], wanted: int) -> bool | None:
    """Whether a number is a sum of strides (above 0) times steps; None: too slow to decide."""
    return _Sum.from_terms(terms).reaches(0, wanted)


@dataclass(slots=True)
class _Sum:
    """The possible sums of strides times steps, with properties of the sums of trailing terms."""

    terms: list[tuple[int, int]]
    #: Of the terms from each position on: the greatest sum, the common divisor of all sums, and
    #: whether the sums include every number up to the greatest.
    most: list[int] = field(default_factory=list)
    divisors: list[int] = field(default_factory=list)
    dense: list[bool] = field(default_factory=list)
    steps: int = 0

    @classmethod
    def of(cls, a: Touch, b: Touch) -> _Sum:
        """The sums of two touches."""
        return cls.from_terms((*(a.terms or ()), *(b.terms or ())))

    @classmethod
    def from_terms(cls, terms: Iterable[tuple[int, int]]) -> _Sum:
        """The sums of strides and numbers of steps."""
        sizes: dict[int, int] = {}
        for stride, size in terms:
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
        """Whether terms from a position on can sum up to `wanted`; None: too slow to decide."""
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
        reached: bool | None = False
        for step in range(least, min(size - 1, wanted // stride) + 1):
            reached = self.reaches(position + 1, wanted - step * stride)
            if reached is not False:
                return reached
        return reached
