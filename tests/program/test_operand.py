"""Affine functions and accesses against what they enumerate; records against nonsense."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.errors import MalformedProgramError, UnknownFormatError
from neuronjax.formats import FLOAT32
from neuronjax.program.affine import Affine, First, Last, affine, flag_holds
from neuronjax.program.element_types import ELEMENT_TYPES, bytes_of, element_type_named
from neuronjax.program.operand import (
    Access,
    Buffer,
    Dim,
    Immediate,
    Memory,
    Register,
    RegisterOffset,
    whole,
)
from neuronjax.program.program import Loop

TRIPS = {"i": 3, "j": 4, "k": 1}
little = st.integers(-9, 9)
functions = st.builds(
    lambda base, terms: affine(base, **terms),
    little,
    st.dictionaries(st.sampled_from("ijk"), little),
)
walks = st.lists(st.builds(Dim, little, st.integers(1, 4)), max_size=4).map(tuple)


def valuations() -> list[dict[str, int]]:
    ranges = [range(count) for count in TRIPS.values()]
    return [dict(zip(TRIPS, values, strict=True)) for values in itertools.product(*ranges)]


@given(functions)
def test_intervals_are_tight(function: Affine) -> None:
    values = [function.at(each) for each in valuations()]
    assert function.interval(TRIPS) == (min(values), max(values))


@given(functions, functions, little)
def test_sums_and_multiples(one: Affine, other: Affine, factor: int) -> None:
    for values in valuations():
        assert (one + other).at(values) == one.at(values) + other.at(values)
        assert (one + factor).at(values) == one.at(values) + factor
        assert (one * factor).at(values) == one.at(values) * factor


def buffer(*shape: int, memory: Memory = Memory.SBUF, **more: object) -> Buffer:
    return Buffer(name="b", memory=memory, dtype=FLOAT32, shape=shape, **more)


def touched(dims: tuple[Dim, ...]) -> list[int]:
    steps = itertools.product(*(range(dim.size) for dim in dims))
    strides = [dim.stride for dim in dims]
    return [sum(map(math.prod, zip(strides, step, strict=True))) for step in steps]


@given(walks, functions)
def test_bounds_are_those_of_what_is_touched(dims: tuple[Dim, ...], offset: Affine) -> None:
    access = Access(buffer=buffer(128, 512), partitions=3, offset=offset, dims=dims)
    elements = touched(dims)
    assert access.free_elements == len(elements)
    assert access.nbytes == 3 * len(elements) * 4
    assert access.reach == (min(elements), max(elements))
    low, high = offset.interval(TRIPS)
    assert access.bounds(TRIPS) == (low + min(elements), high + max(elements))
    assert access.span.start == offset


@pytest.mark.parametrize(
    ("register", "stride", "bounds"),
    [(Register("r", 3), 8, (5, 36)), (Register("r", 3), -8, (-19, 12)), (Register("r"), 8, None)],
)
def test_registers_reach_their_limit(
    register: Register, stride: int, bounds: tuple[int, int] | None
) -> None:
    offset = RegisterOffset(register, stride, affine(5))
    access = Access(buffer=buffer(1, 64), offset=offset, dims=(Dim(1, 8),))
    assert access.bounds({}) == bounds
    assert access.registers == (register,)
    assert access.span.start is None


def test_whole_buffers() -> None:
    tile = whole(buffer(128, 4, 8))
    assert (tile.partitions, tile.dims, tile.nbytes) == (128, (Dim(8, 4), Dim(1, 8)), 128 * 128)
    tensor = whole(buffer(128, 8, memory=Memory.HBM))
    assert (tensor.partitions, tensor.dims) == (1, (Dim(8, 128), Dim(1, 8)))


def test_slots() -> None:
    assert buffer(128, 8, slots=3).extent == 96
    assert buffer(128, 8, slots=3, slot_stride=2048).extent == 2 * 2048 + 32


@pytest.mark.parametrize(
    ("flag", "true_at"),
    [(True, {0, 1, 2, 3}), (False, set()), (First(("j",)), {0}), (Last(("j",)), {3}),
     (First(()), {0, 1, 2, 3}), (Last(("j", "k")), {3})],
)  # fmt: skip
def test_flags(flag: bool | First | Last, true_at: set[int]) -> None:
    held = {j for j in range(4) if flag_holds(flag, {"i": 1, "j": j, "k": 0}, TRIPS)}
    assert held == true_at


def test_immediates_are_told_apart_by_their_text() -> None:
    assert Immediate(float("nan")) == Immediate(float("nan"))
    assert len({Immediate(0.0), Immediate(-0.0), Immediate(0), Immediate(0.0)}) == 3
    assert Immediate(1) != 1


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_element_types(name: str) -> None:
    dtype = element_type_named(name)
    assert dtype.name == name
    assert bytes_of(dtype) * 8 == dtype.storage_bits


@pytest.mark.parametrize(
    ("name", "bits"),
    [("uint8", 8), ("int64", 64), ("float8_e4m3fn_x4", 32), ("float8_e5m2_x4", 32),
     ("float4_e2m1fn_x4", 16), ("tfloat32", 32)],
)  # fmt: skip
def test_widths(name: str, bits: int) -> None:
    assert element_type_named(name).storage_bits == bits


@pytest.mark.parametrize(
    "make",
    [
        lambda: Affine(0, (("j", 1), ("i", 1))),
        lambda: Affine(0, (("i", 0),)),
        lambda: Affine(0, (("i", 1), ("i", 1))),
        lambda: Buffer(name="1b", memory=Memory.HBM, dtype=FLOAT32, shape=()),
        lambda: buffer(),
        lambda: buffer(0),
        lambda: buffer(1, slots=0),
        lambda: buffer(1, partition=-1),
        lambda: Register("a b"),
        lambda: Dim(1, 0),
        lambda: Access(buffer=buffer(1), partitions=0),
        lambda: Access(buffer=buffer(1), dtype=element_type_named("int8")),
        lambda: Loop(variable="i", trips=0, body=()),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(MalformedProgramError):
        make()


def test_unknown_types_are_refused() -> None:
    with pytest.raises(UnknownFormatError, match="int7"):
        element_type_named("int7")
