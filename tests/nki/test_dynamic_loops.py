"""Loops whose trips a register decides about, beside numpy and in several orders."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import code, core
from neuronjax.errors import (
    CollectiveError,
    EndlessLoopError,
    KernelWarning,
    MemoryAccessError,
    RaceError,
    UnsupportedProgramError,
)
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).integers(-4, 5, (64, 8)).astype(np.float32)
ORDERS: dict[str, core.Order | None] = {
    "program": None,
    "dataflow": core.DataflowOrder(seed=1),
    "adversarial": core.DataflowOrder(seed=2, adversarial=True),
}


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> core.Order | None:
    return ORDERS[request.param]


def number(value: int) -> np.ndarray:
    return np.array([[value]], np.int32)


def flags(trips: int) -> np.ndarray:
    """What goes on for so many trips."""
    return np.array([[1] * trips + [0] * (8 - trips)], np.int32)


def register_of(x: Tensor) -> VirtualRegister:
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(x))
    return register


def bound(x: Tensor | int) -> VirtualRegister | int:
    return register_of(x) if isinstance(x, Tensor) else x


def add_rows(total: Tensor, x: Tensor, first: VirtualRegister) -> None:
    """Adds eight rows, by way of PSUM."""
    block = loaded(x[nl.ds(first, 8)])
    doubled = tile((8, 8), buffer=nl.psum)
    for half in nl.affine_range(2):
        columns = slice(4 * half, 4 * half + 4)
        nisa.activation(doubled[:, columns], nl.copy, block[:, columns], scale=2.0)
    nisa.tensor_tensor(total, total, doubled, nl.add)


@nki.jit
def summed(x: Tensor, start: Tensor | int, stop: Tensor | int, step: int = 1) -> Tensor:
    """Sums of rows, which a static loop before the dynamic one begins, and one behind it ends."""
    total = nl.zeros((8, 8), nl.float32)
    for first in nl.affine_range(3):
        nisa.tensor_tensor(total, total, loaded(x[first : first + 8]), nl.add)
    for first in nl.dynamic_range(bound(start), bound(stop), step):
        add_rows(total, x, first)
    for last in nl.affine_range(3):
        nisa.tensor_tensor(total, total, loaded(x[last + 9 : last + 17]), nl.add)
    return stored(total)


@nki.jit
def summed_by_fori(x: Tensor, start: Tensor | int, stop: Tensor | int, step: int = 1) -> Tensor:
    total = nl.zeros((8, 8), nl.float32)
    nl.fori_loop(bound(start), bound(stop), lambda first: add_rows(total, x, first), step)
    return stored(total)


def sums(start: int, stop: int, step: int = 1) -> np.ndarray:
    blocks = [2 * X[first : first + 8] for first in range(start, stop, step)]
    return sum(blocks, np.zeros((8, 8), np.float32))


RANGES = [(0, 3, 1), (0, 0, 1), (4, 2, 1), (0, -5, 3), (1, 8, 3), (2, 9, 7)]


@pytest.mark.parametrize(("start", "stop", "step"), RANGES)
def test_counted_loops(start: int, stop: int, step: int, order: core.Order | None) -> None:
    about = sum(X[first : first + 8] + X[first + 9 : first + 17] for first in range(3))
    got = nki.simulate(summed, order)(X, number(start), number(stop), step)
    np.testing.assert_array_equal(got, sums(start, stop, step) + about)
    got = nki.simulate(summed_by_fori, order)(X, number(start), number(stop), step)
    np.testing.assert_array_equal(got, sums(start, stop, step))


def test_bounds_that_are_numbers_in_part_or_both() -> None:
    about = sums(0, 0) + sum(X[first : first + 8] + X[first + 9 : first + 17] for first in range(3))
    for start, stop in ((2, number(5)), (number(2), 5)):
        np.testing.assert_array_equal(nki.simulate(summed)(X, start, stop), sums(2, 5) + about)
    np.testing.assert_array_equal(nki.simulate(summed_by_fori)(X, 2, 5), sums(2, 5))
    assert nki.benchmark(summed_by_fori, X, 2, 5).assumed[0].endswith(": 3 trips")


@nki.jit
def added_while(x: Tensor, goes_on: Tensor) -> Tensor:
    """Adds the rows from 0, from 1 and so on, while there are flags, which are read as it goes."""
    total, place = nl.zeros((8, 8), nl.float32), nl.zeros((1, 1), nl.int32)
    register = nisa.register_alloc(loaded(goes_on[:, 0:1]))
    while register:
        block = tile((8, 8))
        nisa.dma_copy(block, x.ap([[8, 8], [1, 8]], scalar_offset=place, indirect_dim=0))
        nisa.tensor_tensor(total, total, block, nl.add)
        nisa.tensor_scalar(place, place, nl.add, 1)
        flag = tile((1, 1), nl.int32)
        nisa.dma_copy(flag, goes_on.ap([[8, 1], [1, 1]], scalar_offset=place, indirect_dim=1))
        nisa.register_load(register, flag)
    return stored(nl.multiply(total, 2.0))


@nki.jit
def counted_down(x: Tensor, count: Tensor) -> Tensor:
    total, left = nl.zeros((8, 8), nl.float32), loaded(count)

    def body(value: VirtualRegister) -> VirtualRegister:
        nisa.register_store(left, value)
        add_rows(total, x, value)
        nisa.tensor_scalar(left, left, nl.add, -1)
        after = nisa.register_alloc()
        nisa.register_load(after, left)
        return after

    nl.while_loop(register_of(count), body)
    return stored(total)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loops_with_a_condition(trips: int, order: core.Order | None) -> None:
    got = nki.simulate(added_while, order)(X, flags(trips))
    np.testing.assert_array_equal(got, sums(0, trips))
    got = nki.simulate(counted_down, order)(X, number(trips))
    np.testing.assert_array_equal(got, sums(1, trips + 1))


def test_a_loop_within_a_program_and_in_time() -> None:
    got = jax.jit(added_while)(X, flags(3))
    np.testing.assert_array_equal(got, sums(0, 3))
    timeline = nki.benchmark(added_while, X, flags(3))
    assert len(timeline.assumed) == 1
    assert "line" in timeline.assumed[0]
    assert timeline.assumed[0].endswith(": 1 trips")


@nki.jit
def exchanged(x: Tensor, counts: Tensor, has_barrier: bool = True) -> Tensor:
    """Every trip, a program adds what the other one has in HBM, and halves of all are its own."""
    between = nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm)
    out = nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    mine, theirs = nl.ds(8 * me, 8), nl.ds(8 - 8 * me, 8)
    total = loaded(x[mine])
    count = register_of(counts[nl.ds(me, 1)])
    for _ in nl.dynamic_range(count):
        nisa.dma_copy(between[mine], total)
        if has_barrier:
            nisa.core_barrier(between, (0, 1))
        nisa.tensor_tensor(total, total, loaded(between[theirs]), nl.add)
        nisa.core_barrier(between, (0, 1))
    nisa.dma_copy(out[mine], total)
    return out


def test_programs_meet_in_every_trip(order: core.Order | None) -> None:
    got = nki.simulate(exchanged[2], order)(X, np.full((2, 1), 3, np.int32))
    both = X[:8] + X[8:16]
    np.testing.assert_array_equal(got, 4 * np.concatenate([both, both]))
    with pytest.raises(CollectiveError, match=r"core 0 at .*core_barrier.* Cores \[1\] have ended"):
        nki.simulate(exchanged[2], order)(X, np.array([[3], [2]], np.int32))


def test_a_missing_barrier_in_such_a_loop_is_seen() -> None:
    counts = np.full((2, 1), 3, np.int32)

    def simulate_in_ten_orders() -> None:
        for seed in range(10):
            nki.simulate(exchanged[2], core.DataflowOrder(seed=seed))(X, counts, has_barrier=False)

    with pytest.raises(RaceError, match=r"test_dynamic_loops.py:\d+"):
        simulate_in_ten_orders()


def left_early(register: VirtualRegister, x: Tensor) -> None:
    for _ in nl.dynamic_range(register):
        break


def left_while(register: VirtualRegister, x: Tensor) -> None:
    while register:
        nisa.register_load(register, loaded(x))
        break


def never_ending(register: VirtualRegister, x: Tensor) -> None:
    while register:
        loaded(x)


def never_ending_body(register: VirtualRegister, x: Tensor) -> None:
    nl.while_loop(register, lambda value: value)


def asked(register: VirtualRegister, x: Tensor) -> None:
    if register:
        loaded(x)


def negated(register: VirtualRegister, x: Tensor) -> None:
    while not register:
        loaded(x)


def summed_without_a_beginning(register: VirtualRegister, x: Tensor) -> None:
    sums = tile((1, 1), buffer=nl.psum)
    block = nl.zeros((1, 1), nl.bfloat16)
    for _ in nl.dynamic_range(register):
        nisa.nc_matmul(sums, block, block)


def compared(register: VirtualRegister, x: Tensor) -> None:
    while register != 0:
        loaded(x)


def increased(register: VirtualRegister, x: Tensor) -> None:
    loaded(x[nl.ds(register + 1, 1)])


def counted_by_python(register: VirtualRegister, x: Tensor) -> None:
    for _ in range(register):
        loaded(x)


REFUSED: dict[Callable[[VirtualRegister, Tensor], None], str] = {
    left_early: "break or return leaves a loop over a register",
    left_while: "break or return leaves a loop over a register",
    never_ending: "the loop never ends: nothing in its body changes the register",
    never_ending_body: "the loop never ends: nothing in its body changes the register",
    asked: "write `while register:`, nl.while_loop or nl.where",
    negated: "write `while register:`, nl.while_loop or nl.where",
    summed_without_a_beginning: "older than the loop over a register; say accumulate=",
    compared: "no operator of comparison, .*use nisa.register_load",
    increased: r"no operator \+ or -, .*use nisa.register_load",
    counted_by_python: "use nl.dynamic_range",
    lambda register, x: list(nl.dynamic_range(0, register, register)): "the step of a loop",  # type: ignore[arg-type]
    lambda register, x: list(nl.dynamic_range(0, register, 0)): "pass a positive integer",
    lambda register, x: list(nl.dynamic_range(1.5, register)): "a loop's bound is 1.5",  # type: ignore[arg-type]
    lambda register, x: nl.while_loop(x, lambda value: value): "init is ",  # type: ignore[arg-type]
    lambda register, x: nl.while_loop(register, lambda _: None): "what body_fun returns is None",  # type: ignore[arg-type,return-value]
}


@pytest.mark.parametrize("misuse", REFUSED)
def test_what_is_refused(misuse: Callable[[VirtualRegister, Tensor], None]) -> None:
    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        misuse(register_of(x), x)
        return stored(loaded(x))

    with pytest.raises(UnsupportedProgramError, match=r"test_dynamic_loops.py:\d+: ") as raised:
        kernel.trace(number(3))
    raised.match(REFUSED[misuse])
    assert "\n" not in str(raised.value)


def test_a_loop_that_goes_on(order: core.Order | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_TRIPS", 20)
    with pytest.raises(EndlessLoopError, match=r"test_dynamic_loops.py:\d+: .* after 20 trips"):
        nki.simulate(added_while, order)(np.zeros((64, 8), np.float32), np.ones((1, 64), np.int32))


@pytest.mark.parametrize("between", range(5))
def test_what_a_loop_without_a_trip_says_of_the_loop_before(between: int) -> None:
    """With some number of transfers in between, both loops have the same queue."""

    @nki.jit
    def kernel(x: Tensor, count: Tensor) -> Tensor:
        register = register_of(count)
        seen, other = tile((64, 8)), tile((64, 1))
        for column in nl.affine_range(8):
            nisa.dma_copy(seen[:, nl.ds(column, 1)], x[:, nl.ds(column, 1)])
        for column in range(between):
            loaded(x[:, column : column + 1])
        for _ in nl.dynamic_range(register):
            nisa.dma_copy(other, x[:, 0:1])
        nisa.tensor_scalar(seen, seen, nl.add, 1.0)
        return stored(seen)

    for seed in range(3):
        run = nki.simulate(kernel, core.DataflowOrder(seed=seed, adversarial=True))
        np.testing.assert_array_equal(run(X, number(0)), X + 1)


@pytest.mark.parametrize("known", [True, False], ids=["numbers", "registers"])
def test_numbers_of_a_loop_shift_accesses(known: bool, order: core.Order | None) -> None:
    """NKI's guide to dynamic loops: with bounds that are numbers, too."""

    def kernel(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        stop = 64 if known else nisa.register_alloc(64)
        for row in nl.dynamic_range(0, stop, 16):
            block = tile((16, 8))
            pattern = [[8, 16], [1, 8]]
            nisa.dma_copy(block, x.ap(pattern, scalar_offset=row))
            nisa.tensor_scalar(block, block, nl.add, 1.0)
            nisa.dma_copy(out.ap(pattern, scalar_offset=row, indirect_dim=0), block)
        return out

    np.testing.assert_array_equal(nki.simulate(kernel, order)(X), X + 1)


def test_lists_have_no_numbers_of_a_loop() -> None:
    def kernel(x: Tensor, stop: Tensor) -> Tensor:
        on_chip = loaded(x)
        for _ in list(nl.dynamic_range(register_of(stop))):
            nisa.tensor_scalar(on_chip, on_chip, nl.add, 1.0)
        return stored(on_chip)

    with pytest.warns(KernelWarning, match=r"test_dynamic_loops.py:\d+: the loop .* has no instr"):
        nki.simulate(kernel)(X, number(3))


COUNTS = np.array([[3, 0, 5, 2, 1]], np.int32)
BLOCKS = X.reshape(8, 8, 8)


def blocks_by_group(x: Tensor, counts: Tensor, groups: Tensor) -> Tensor:
    """Of each group the sum of as many blocks as it has, in a loop within a loop."""
    out, has = nl.ndarray((5, 8, 8), x.dtype, nl.shared_hbm), loaded(counts)
    empty = nl.zeros((8, 8), x.dtype)
    for group in range(5):
        nisa.dma_copy(out[group], empty)
    for group in nl.dynamic_range(register_of(groups)):
        total = nl.zeros((8, 8), x.dtype)
        for block in nl.dynamic_range(nisa.register_alloc(has[:, nl.ds(group, 1)])):
            there = tile((8, 8))
            nisa.dma_copy(there, x.select(0, block))
            nisa.tensor_tensor(total, total, there, nl.add)
        nisa.dma_copy(out.select(0, group), total)
    return out


def blocks_while(x: Tensor, counts: Tensor, groups: Tensor) -> Tensor:
    """The same, from the last block on, with a condition within a function."""
    out, has = nl.ndarray((5, 8, 8), x.dtype, nl.shared_hbm), loaded(counts)
    empty = nl.zeros((8, 8), x.dtype)
    for group in range(5):
        nisa.dma_copy(out[group], empty)

    def sum_of(group: VirtualRegister) -> None:
        total, left = nl.zeros((8, 8), x.dtype), tile((1, 1), nl.int32)
        nisa.tensor_copy(left, has[:, nl.ds(group, 1)])
        rest = nisa.register_alloc(left)
        while rest:
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.register_load(rest, left)
            there = tile((8, 8))
            nisa.dma_copy(there, x.select(0, rest))
            nisa.tensor_tensor(total, total, there, nl.add)
        nisa.dma_copy(out.select(0, group), total)

    nl.fori_loop(0, register_of(groups), sum_of)
    return out


@pytest.mark.parametrize("kernel", [blocks_by_group, blocks_while], ids=lambda k: k.__name__)
@pytest.mark.parametrize("groups", [0, 4, 5])
def test_loops_within_loops(
    kernel: Callable[..., Tensor], groups: int, order: core.Order | None
) -> None:
    expected = np.zeros((5, 8, 8))
    for group, count in enumerate(COUNTS[0, :groups]):
        expected[group] = BLOCKS[:count].sum(0)
    given = BLOCKS, COUNTS, number(groups)
    np.testing.assert_array_equal(nki.simulate(kernel, order)(*given), expected)
    if order is None:
        np.testing.assert_array_equal(jax.jit(nki.jit(kernel))(*given), expected)
        assert nki.benchmark(kernel, *given).total_ns > 0


def test_lines_of_loops_within_loops() -> None:
    with pytest.raises(MemoryAccessError, match=r"test_dynamic_loops.py:\d+: .*dma_copy: src"):
        nki.simulate(blocks_by_group)(BLOCKS, COUNTS + 9, number(5))


def test_such_loops_are_not_built_for_several_programs() -> None:
    with pytest.raises(UnsupportedProgramError, match=r"within another one, of .*several programs"):
        nki.simulate(nki.jit(blocks_by_group)[2])(BLOCKS, COUNTS, number(5))


def test_sums_of_an_inner_loop_begin_with_its_tile() -> None:
    def kernel(x: Tensor, trips: Tensor) -> Tensor:
        block = loaded(x)
        for _ in nl.dynamic_range(register_of(trips)):
            sums = tile((8, 8), buffer=nl.psum)
            for _ in nl.dynamic_range(register_of(trips)):
                nisa.nc_matmul(sums, block, block)
        return x

    with pytest.raises(UnsupportedProgramError, match="older than the loop over a register; say"):
        nki.simulate(kernel)(X, number(2))
