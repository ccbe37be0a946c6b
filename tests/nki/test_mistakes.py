"""Mistakes that authors of kernels make: each is found, with the line where it is made."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import KernelWarning, NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).standard_normal((128, 64), np.float32)


def last_product_only(x: Tensor) -> Tensor:
    """Every product overwrites the one before."""
    product = tile((64, 64), buffer=nl.psum)
    for half in nl.affine_range(2):
        rows = loaded(x[nl.ds(64 * half, 64)])
        nisa.nc_matmul(product, rows, rows, accumulate=False)
    out = tile((64, 64))
    nisa.tensor_copy(out, product)  # mistake
    return stored(out)


def one_tile_for_all(x: Tensor) -> Tensor:
    """The list has the same tile twice."""
    rows, parts = tile((64, 64)), []
    for half in nl.affine_range(2):
        nisa.dma_copy(rows, x[nl.ds(64 * half, 64)])
        parts.append(rows)
    out = tile((64, 64))
    nisa.tensor_tensor(out, parts[0], parts[1], nl.add)  # mistake
    return stored(out)


def one_place_for_all(x: Tensor) -> Tensor:
    out = nl.ndarray((64, 64), x.dtype, buffer=nl.shared_hbm)
    for half in nl.affine_range(2):
        nisa.dma_copy(out, loaded(x[nl.ds(64 * half, 64)]))  # mistake
    return out


def begun_in_the_first_iteration(x: Tensor) -> Tensor:
    """The running sum is a tile of the first iteration."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for half in nl.affine_range(2):
        part = loaded(x[:, nl.ds(32 * half, 32)])
        if half == 0:
            total = nl.zeros((128, 32), x.dtype)
        both = tile((128, 32))
        nisa.tensor_tensor(both, total, part, nl.add)  # mistake
        nisa.tensor_copy(total, both)
        nisa.dma_copy(out[:, nl.ds(32 * half, 32)], both)
    return out


def added_up_in_one_tile(x: Tensor) -> Tensor:
    """Products that are read one by one, and were meant to be products by themselves."""
    sums, out = tile((64, 64), buffer=nl.psum), nl.ndarray((2, 64, 64), x.dtype, nl.shared_hbm)
    for half in range(2):
        rows, read = loaded(x[nl.ds(64 * half, 64)]), tile((64, 64))
        nisa.nc_matmul(sums, rows, rows)
        nisa.tensor_copy(read, sums)  # mistake
        nisa.dma_copy(out[half], read)
    return out


def never_begun(x: Tensor) -> Tensor:
    product, rows = tile((64, 64), buffer=nl.psum), loaded(x)
    nisa.nc_matmul(product, rows, rows, accumulate=True)  # mistake
    out = tile((64, 64))
    nisa.tensor_copy(out, product)
    return stored(out)


def returned_from_sbuf(x: Tensor) -> Tensor:  # mistake
    return loaded(x)


def returned_from_private_memory(x: Tensor) -> Tensor:  # mistake
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(out, loaded(x))
    return out


def within_a_bank(x: Tensor) -> Tensor:
    product = nl.ndarray((64, 64), nl.float32, buffer=nl.psum, address=(0, 1024))  # mistake
    nisa.nc_matmul(product, loaded(x), loaded(x))
    return stored(product)


def into_a_constant(x: Tensor) -> Tensor:
    scale = nl.shared_constant(np.ones((128, 64), np.float32))
    nisa.dma_copy(scale, loaded(x))  # mistake
    return stored(loaded(scale))


def transposed_to_a_narrower_type(x: Tensor) -> Tensor:
    turned = tile((64, 128), nl.bfloat16, nl.psum)
    identity = nl.shared_identity_matrix(128, nl.float32)
    nisa.nc_matmul(turned, loaded(x), identity, is_transpose=True)  # mistake
    out = tile((64, 128))
    nisa.tensor_copy(out, turned)
    return stored(out)


def waiting_for_private_memory(x: Tensor) -> Tensor:
    own = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(own, loaded(x))
    nisa.core_barrier(own, (0, 1))  # mistake
    return _in_turn(loaded(own))


def sent_to_one_received_from_another(x: Tensor) -> Tensor:
    mine, theirs = loaded(x), tile(x.shape)
    other = 1 - nl.program_id(0)
    nisa.sendrecv(mine, theirs, send_to_rank=other, recv_from_rank=0)  # mistake
    return _in_turn(theirs)


def received_by_half(x: Tensor) -> Tensor:
    mine, theirs = loaded(x), nl.zeros(x.shape, x.dtype)
    other = 1 - nl.program_id(0)
    nisa.sendrecv(mine, theirs[0:64], other, other)  # mistake
    return _in_turn(theirs)


def too_much_for_gpsimd(x: Tensor) -> Tensor:
    mine, theirs = nl.zeros((128, 512), x.dtype), tile((128, 512))
    other = 1 - nl.program_id(0)
    nisa.sendrecv(mine, theirs, other, other, dma_engine=nisa.dma_engine.gpsimd_dma)  # mistake
    return _in_turn(theirs)


def in_one_place_for_all(x: Tensor) -> Tensor:
    """Two parts take turns in one buffer, and the first is needed after the second was loaded."""
    places = [nl.ndarray((64, 64), x.dtype, address=(0, 1024)) for _ in range(2)]
    nisa.dma_copy(places[0], x[0:64])
    nisa.dma_copy(places[1], x[64:128])  # mistake
    nisa.tensor_tensor(places[1], places[0], places[1], nl.add)
    return stored(places[1])


def shifted_in_a_tile(x: Tensor) -> Tensor:
    rows = loaded(x)
    nisa.tensor_copy(rows[:, 1:64], rows[:, 0:63])  # mistake
    return stored(rows)


def turned_in_a_tile(x: Tensor) -> Tensor:
    rows = loaded(x).reshape((128, 8, 8))
    nisa.tensor_copy(rows, rows.permute((0, 2, 1)))  # mistake
    return stored(rows)


def shifted_in_memory(x: Tensor) -> Tensor:
    out = stored(loaded(x))
    nisa.dma_copy(out[0:127], out[1:128])  # mistake
    return out


def added_to_what_was_there(x: Tensor) -> Tensor:
    rows, total = loaded(x), tile((128, 1))
    nisa.activation(rows, nl.exp, rows, reduce_op=nl.add, reduce_res=total)  # mistake
    return stored(total)


def never_received(x: Tensor) -> Tensor:
    mine, theirs = loaded(x), tile(x.shape)
    nisa.tensor_tensor(mine, mine, theirs, nl.add)  # mistake
    return _in_turn(mine)


def beyond_the_end_at_run_time(x: Tensor) -> Tensor:
    row, register = nl.full((1, 1), 100, nl.int32), nisa.register_alloc()
    nisa.register_load(register, row)
    part = tile((64, 64))
    nisa.dma_copy(part, x[nl.ds(register, 64)])  # mistake
    return _in_turn(part)


def _in_turn(x: Tensor) -> Tensor:
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0)], x)
    return out


@dataclass(frozen=True)
class Mistake:
    """What is said, at the marked line; how many programs there are."""

    said: str
    programs: int | None = None


MISTAKES: Mapping[Callable[..., Tensor], Mistake] = {
    last_product_only: Mistake("reads what several iterations have written in .*affine_range"),
    one_tile_for_all: Mistake("reads what several iterations have written in"),
    one_place_for_all: Mistake("several iterations write to the same place of a result"),
    begun_in_the_first_iteration: Mistake("reads what an earlier iteration has written in"),
    added_up_in_one_tile: Mistake("reads a sum in PSUM to which .* adds afterwards"),
    never_begun: Mistake("added to unwritten PSUM; .*accumulate=False on the first product"),
    returned_from_sbuf: Mistake(r"returns a tensor .* in sbuf of .*kernels.py:\d+; return whole"),
    returned_from_private_memory: Mistake(r"of .*test_mistakes.py:\d+, of which each", 2),
    within_a_bank: Mistake("is 1024 bytes into a bank of PSUM"),
    into_a_constant: Mistake("dst writes to the constant"),
    transposed_to_a_narrower_type: Mistake("dst of bfloat16; allowed: float32"),
    waiting_for_private_memory: Mistake("in private_hbm is memory of this core alone", 2),
    sent_to_one_received_from_another: Mistake("sends to core 1 and receives from core 0", 2),
    received_by_half: Mistake("src of 128 partitions", 2),
    too_much_for_gpsimd: Mistake("at most 1024 bytes of a partition with gpsimd_dma", 2),
    in_one_place_for_all: Mistake(r"scratch\d lies where .* while .*:\d+: .*tensor_tensor needs"),
    shifted_in_a_tile: Mistake("dst of tensor_copy overlaps src at other elements"),
    turned_in_a_tile: Mistake("dst of tensor_copy overlaps src at other elements"),
    shifted_in_memory: Mistake("dst of dma_copy overlaps src at other elements"),
    added_to_what_was_there: Mistake("reduce_cmd=idle uses accumulator registers of scalar"),
    never_received: Mistake("data2 reads .*that nothing has written", 2),
    beyond_the_end_at_run_time: Mistake("src reaches .*elements 6400 to 10495", 2),
}


@pytest.mark.parametrize("function", MISTAKES, ids=lambda function: function.__name__)
def test_mistakes_are_found(function: Callable[..., Tensor]) -> None:
    mistake, kernel = MISTAKES[function], nki.jit(function)
    text, first = inspect.getsourcelines(function)
    line = first + next(number for number, line in enumerate(text) if "# mistake" in line)
    said = _said(kernel if mistake.programs is None else kernel[mistake.programs])
    assert re.search(rf"test_mistakes.py:{line}: .*{mistake.said}", said, re.DOTALL), said


def _said(kernel: nki.Kernel) -> str:
    """What is said when a kernel is run."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", KernelWarning)
        try:
            nki.simulate(kernel)(X)
        except NeuronError as error:
            return str(error)
    return "\n".join(str(warning.message) for warning in warned)


def test_a_loop_that_is_written_out_is_reported_once() -> None:
    """Each line once, however many iterations read there what nothing has written."""

    def unwritten(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for number in range(8):
            part = tile((128, 8))
            nisa.tensor_scalar(part, part, nl.multiply, 2.0)
            nisa.dma_copy(out[:, nl.ds(8 * number, 8)], part)
        return out

    kernel = nki.jit(unwritten)
    assert _said(kernel).count("that nothing has written") == 1
    loop, advice = kernel.trace(X).notes
    assert "a tile is read where nothing has been written" in loop
    assert "must not depend on them" in advice


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1, adversarial=True)])
@pytest.mark.filterwarnings("ignore::neuronjax.errors.KernelWarning")
def test_sums_may_be_read_before_they_are_complete(order: core.Order | None, chip: str) -> None:
    first, second = X.astype(np.float64).reshape(2, 64, 64)
    expected = np.stack([first.T @ first, first.T @ first + second.T @ second])
    result = nki.simulate(added_up_in_one_tile, order, chip)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("halves", "noted"), [(0, "8192 of 8192"), (1, "4096 of 8192"), (2, "")])
def test_results_that_are_not_written_are_noted(halves: int, noted: str) -> None:
    @nki.jit
    def parts(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for half in range(halves):
            nisa.dma_copy(out[:, half::2], loaded(x[:, half::2]))
        return out

    (note,) = parts.trace(X).notes or ("",)
    assert re.search(
        rf"test_mistakes.py:\d+: {noted} elements of this result" if noted else "^$", note
    )


def repeated(x: Tensor) -> Tensor:
    """Iterations that write the same values to the same place, or use a place anew; and operands
    that take the place of others, or lie before them."""
    scale, part, out = tile((128, 1)), nl.ndarray((128, 32), x.dtype, name=None), tile(x.shape)
    wide = loaded(x)
    nisa.tensor_copy(wide[:, 0:32], wide[:, 32:64])
    for half in nl.affine_range(2):
        nisa.memset(scale, 2.0)
        nisa.dma_copy(part, x[:, nl.ds(32 * half, 32)])
        nisa.tensor_scalar(out[:, nl.ds(32 * half, 32)], part, nl.multiply, scale)
    nisa.tensor_scalar(out, out, nl.multiply, scale)
    return stored(out)


def test_places_that_are_used_again_are_none() -> None:
    kernel = nki.jit(repeated)
    assert kernel.trace(X).notes == ()
    np.testing.assert_array_equal(nki.simulate(kernel)(X), 4 * X)
