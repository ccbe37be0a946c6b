"""Accesses that follow a tile's contents to where a tensor is kept: against walks written out."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronjax.formats import FLOAT32
from neuronjax.lower.join.resident import translated
from neuronjax.program.affine import Affine, affine
from neuronjax.program.operand import Access, Buffer, Dim, Memory

COUNT = 24
OLD = Buffer(name="old", memory=Memory.SBUF, dtype=FLOAT32, shape=(128, 64))
NEW = Buffer(name="new", memory=Memory.SBUF, dtype=FLOAT32, shape=(128, 4096))
WALKS = [(24,), (3, 8), (4, 6), (2, 3, 4), (24, 1)]
TRIPS = {"i": 3}

sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24])
dims = st.lists(st.builds(Dim, st.sampled_from([-8, -1, 1, 2, 3, 4, 6, 8, 12]), sizes), max_size=2)


def elements(access: Access, trip: int) -> list[int]:
    """Elements of a partition, in the order of the walk."""
    assert isinstance(access.offset, Affine)
    start = access.offset.at({"i": trip})
    steps = [[dim.stride * step for step in range(dim.size)] for dim in access.dims]
    return [start + sum(each) for each in itertools.product(*steps)]


def access(buffer: Buffer, offset: Affine, walk: list[Dim]) -> Access:
    return Access(buffer=buffer, partition=affine(0), partitions=1, offset=offset, dims=tuple(walk))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    step=st.sampled_from([1, 2]),
    strides=st.permutations([1, 30, 700]),
    sizes=st.sampled_from(WALKS),
    base=st.integers(0, 23),
    factor=st.sampled_from([0, 1, 2, 4, 8, 12]),
    walk=dims,
)
def test_an_access_finds_the_elements_where_they_are_kept(
    step: int, strides: list[int], sizes: tuple[int, ...], base: int, factor: int, walk: list[Dim]
) -> None:
    old = access(OLD, affine(5), [Dim(step, COUNT)])
    new = access(NEW, affine(7), [Dim(*each) for each in zip(strides, sizes, strict=False)])
    place = dict(zip(elements(old, 0), elements(new, 0), strict=True))
    steps = [Dim(dim.stride * step, dim.size) for dim in walk]
    user = access(OLD, affine(5 + base * step, i=factor * step), steps or [Dim(1, 1)])
    found = translated(user, old, new, TRIPS)
    visited = [elements(user, trip) for trip in range(TRIPS["i"])]
    if any(at not in place for each in visited for at in each):
        assert found is None
    elif found is not None:
        expected = [[place[at] for at in each] for each in visited]
        assert [elements(found, trip) for trip in range(TRIPS["i"])] == expected


def test_the_same_walk_is_always_found() -> None:
    old = access(OLD, affine(5), [Dim(1, COUNT)])
    new = access(NEW, affine(7), [Dim(30, 3), Dim(1, 8)])
    assert translated(old, old, new, TRIPS) == new
    part = access(OLD, affine(5, i=8), [Dim(1, 8)])
    found = translated(part, old, new, TRIPS)
    assert found is not None
    assert elements(found, 2) == list(range(67, 75))


def test_one_element_over_and_over_is_not_followed() -> None:
    old = access(OLD, affine(5), [Dim(0, COUNT)])
    new = access(NEW, affine(7), [Dim(1, COUNT)])
    assert translated(old, old, new, TRIPS) == new
    assert translated(access(OLD, affine(5), [Dim(1, 1)]), old, new, TRIPS) is None
