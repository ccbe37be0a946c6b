"""Accesses that meet, as counting their elements says."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.formats import FORMATS
from neuronjax.program.affine import Affine, affine
from neuronjax.program.conflicts import conflicts, touches
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access, Buffer, Dim, Memory, Register, RegisterOffset
from neuronjax.program.program import Loop, Node

X, Y = (
    Buffer(name=name, memory=Memory.HBM, dtype=FORMATS["float32"], shape=(999,)) for name in "xy"
)
STRIDES = st.sampled_from((-12, -3, -1, 0, 1, 2, 4, 6, 8, 12, 16))


def apart(one: Buffer, other: Buffer) -> bool | None:
    return False


@st.composite
def nests(draw: st.DrawFn) -> tuple[Access, dict[str, int]]:
    """An access, and the trips of the loops about it."""
    trips = {name: draw(st.integers(1, 4)) for name in "ij"}
    terms = {name: draw(STRIDES) for name in trips}
    dims = tuple(
        Dim(draw(STRIDES), draw(st.integers(1, 4))) for _ in range(draw(st.integers(0, 2)))
    )
    return Access(buffer=X, offset=affine(draw(st.integers(100, 140)), **terms), dims=dims), trips


def nest(access: Access, trips: dict[str, int], *, writes: bool) -> Node:
    other = Access(buffer=Y, dims=access.dims)
    dst, src = (access, other) if writes else (other, access)
    node: Node = DmaCopy(dst=dst, src=src)
    for name, count in trips.items():
        node = Loop(variable=name, trips=count, body=(node,))
    return node


def elements(access: Access, trips: dict[str, int]) -> set[int]:
    """All elements, one by one."""
    assert isinstance(access.offset, Affine)
    walks = [range(dim.size) for dim in access.dims]
    return {
        access.offset.at(dict(zip(trips, values, strict=True)))
        + sum(dim.stride * step for dim, step in zip(access.dims, steps, strict=True))
        for values in itertools.product(*map(range, trips.values()))
        for steps in itertools.product(*walks)
    }


@settings(max_examples=500, deadline=None)
@given(nests(), nests())
def test_writes_meet_reads_where_elements_do(
    one: tuple[Access, dict[str, int]], other: tuple[Access, dict[str, int]]
) -> None:
    mine = [each for each in touches([nest(*one, writes=True)]) if each.buffer == X]
    theirs = [each for each in touches([nest(*other, writes=False)]) if each.buffer == X]
    expected = bool(elements(*one) & elements(*other))
    assert conflicts(mine, theirs, apart) is expected
    assert conflicts(theirs, mine, apart) is expected


@given(nests(), nests())
def test_reads_never_conflict(
    one: tuple[Access, dict[str, int]], other: tuple[Access, dict[str, int]]
) -> None:
    mine, theirs = (
        [each for each in touches([nest(*of, writes=False)]) if each.buffer == X]
        for of in (one, other)
    )
    assert conflicts(mine, theirs, apart) is False


def test_nobody_knows_where_registers_lead() -> None:
    access = Access(buffer=X, offset=RegisterOffset(Register("r")), dims=(Dim(1, 8),))
    whole = Access(buffer=X, dims=(Dim(1, 8),))
    mine = touches([nest(access, {}, writes=True)])[:1]
    assert conflicts(mine, touches([nest(whole, {}, writes=False)])[1:], apart) is None
    assert conflicts(mine, touches([nest(whole, {}, writes=True)])[:1], apart) is None


def test_aliases_are_one_buffer() -> None:
    mine = touches([nest(Access(buffer=X, dims=(Dim(1, 8),)), {}, writes=True)])
    theirs = touches([DmaCopy(dst=Access(buffer=X), src=Access(buffer=Y, dims=()))])
    assert conflicts(mine[:1], theirs[1:], apart) is False
    assert conflicts(mine[:1], theirs[1:], lambda one, other: True) is True
    assert conflicts(mine[:1], theirs[1:], lambda one, other: None) is None
