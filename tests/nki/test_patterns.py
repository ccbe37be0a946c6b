"""Access patterns and addresses that are known when the program runs, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import NeuronError, OutOfBoundsError, UnsupportedProgramError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(0)
X = RNG.standard_normal((256, 64), np.float32)
ROWS = RNG.permutation(256)[:128].astype(np.int32).reshape(128, 1)
PLACE = np.full((1, 1), 37, np.int32)
ORDERS = [None, core.DataflowOrder(seed=1, adversarial=True)]


def copied(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    result = tile(shape, x.dtype)
    nisa.tensor_copy(result, x)
    return result


def beyond_the_end_but_not_used(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """As kernels do whose last round is cut short by a condition."""
    result = tile((128, 32))
    for half in nl.affine_range(3):
        columns = x.ap([[64, 128], [1, 16]], offset=128 * 64 + 24 * half)
        if half < 2:
            nisa.dma_copy(result[:, nl.ds(16 * half, 16)], columns)
    beyond = x.ap([[64, 128], [1, 64]], offset=200 * 64)
    assert beyond.shape == (128, 64)
    return stored(result)


def every_second_column(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    return stored(copied(on_chip.ap([[64, 128], [2, 32]], offset=1), (128, 32)))


def from_a_partition_on(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    return stored(copied(on_chip.ap([[64, 32], [1, 8]], offset=32 * 64 + 5), (32, 8)))


def repeated(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    return stored(copied(on_chip.ap([[64, 128], [0, 2], [1, 64]]), (128, 2, 64)))


def backwards_in_hbm(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    return stored(loaded(x.ap([[64, 128], [4 * 64, 1], [-1, 64]], offset=63)))


def as_integers(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    result = tile((128, 64), nl.int32)
    bits = on_chip.ap([[64, 128], [1, 64]], dtype=nl.int32)
    nisa.tensor_scalar(result, bits, nl.bitwise_and, 0x7F800000)
    return stored(result)


def as_bytes(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    return stored(copied(on_chip.ap([[256, 128], [4, 64]], offset=3, dtype=nl.uint8), (128, 64)))


def as_longer_words(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    halves = tile((128, 128), nl.uint16)
    nisa.memset(halves, 0)
    nisa.tensor_copy(halves[:, 1::2], loaded(x[:128]).view(nl.uint16)[:, 1::2])
    return stored(copied(halves.view(nl.float32), (128, 64)))


def rows_from_a_register(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(place))
    return stored(loaded(x[nl.ds(register, 128), 8:24]))


def columns_from_a_register(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    register = nisa.register_alloc(37)
    on_chip = loaded(x[:128])
    return stored(copied(on_chip[:, nl.ds(register, 16)], (128, 16)))


def scalar_offset(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    moved = x.ap([[64, 128], [1, 64]], offset=64, scalar_offset=loaded(place), indirect_dim=0)
    return stored(loaded(moved))


def scalar_offset_of_columns(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    on_chip = loaded(x[:128])
    moved = on_chip.ap([[64, 128], [1, 4]], scalar_offset=loaded(place), indirect_dim=1)
    return stored(copied(moved, (128, 4)))


def gathered(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    chosen = x.ap([[64, 128], [1, 16]], offset=8, vector_offset=loaded(rows), indirect_dim=0)
    return stored(loaded(chosen))


def gathered_and_transposed(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    words, chosen_rows = x.view(nl.uint16), loaded(rows).view(nl.uint32)
    rows_of_four = [[128, 128], [1, 1], [32, 4], [1, 32]]
    chosen = words.ap(rows_of_four, vector_offset=chosen_rows, indirect_dim=0)
    turned = tile((32, 1, 4, 128), nl.uint16)
    nisa.dma_transpose(turned, chosen, axes=(3, 1, 2, 0), dge_mode=nisa.dge_mode.swdge)
    return stored(turned)


def bytes_in_hbm(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """Read as bytes, and written as words."""
    out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
    part = x[nl.ds(64, 128)].view(nl.uint8)[:, 4:]
    nisa.dma_copy(out.view(nl.uint8)[:, :252], loaded(part))
    nisa.dma_copy(out.view(nl.uint16)[:, 126:], loaded(x[nl.ds(0, 128), 0:1].view(nl.uint16)))
    return out


def written_and_read_as_other_widths(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """What is written through a view is waited for."""
    between = nl.ndarray((128, 64), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(between.view(nl.uint16), loaded(x[:128].view(nl.uint16)))
    twice = loaded(between)
    nisa.tensor_scalar(twice, twice, nl.multiply, 2.0)
    nisa.dma_copy(between, twice)
    return stored(loaded(between.view(nl.uint8).view(nl.float32)))


def transposed_by_hardware(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    words = x[0:16].view(nl.uint16)
    turned = tile((128, 16), nl.uint16)
    nisa.dma_transpose(turned, words, dge_mode=nisa.dge_mode.hwdge)
    return stored(turned)


def transposed_by_stored_descriptors(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    turned = tile((64, 128))
    nisa.dma_transpose(turned, x[:128], dge_mode=nisa.dge_mode.none)
    return stored(turned)


def one_of_long_stride(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """A dimension of one element takes no step, however long it would be."""
    on_chip = tile((128, 2, 1 << 14))
    part = on_chip[:, 0:1, 0:64].ap([[2 << 14, 128], [1 << 15, 1], [1, 64]])
    nisa.dma_copy(part, x[:128].ap([[64, 128], [64, 1], [1, 64]]))
    return stored(copied(part, (128, 1, 64)))


def column_of_a_tile(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    column = loaded(x[:128])[:, 3]
    return stored(copied(column[:32, :1], column[:32].shape))


def scattered(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    out = nl.ndarray((256, 64), x.dtype, buffer=nl.shared_hbm)
    for half in range(2):
        nisa.dma_copy(out[nl.ds(128 * half, 128)], nl.zeros((128, 64), x.dtype))
    chosen = out.ap([[64, 128], [1, 64]], vector_offset=loaded(rows), indirect_dim=0)
    nisa.dma_copy(dst=chosen, src=loaded(x[:128]))
    return out


def _scattered() -> np.ndarray:
    out = np.zeros_like(X)
    out[ROWS[:, 0]] = X[:128]
    return out


KERNELS: dict[Callable[..., Tensor], np.ndarray] = {
    as_bytes: X[:128].view(np.uint8)[:, 3::4],
    as_longer_words: (X[:128].view(np.uint32) & 0xFFFF0000).view(np.float32),
    bytes_in_hbm: np.concatenate([X[64:192, 1:], X[:128, :1]], axis=1),
    written_and_read_as_other_widths: 2 * X[:128],
    transposed_by_hardware: X[:16].view(np.uint16).T,
    one_of_long_stride: X[:128, None],
    column_of_a_tile: X[:32, 3:4],
    gathered_and_transposed: X.view(np.uint16)[ROWS[:, 0]]
    .reshape(128, 1, 4, 32)
    .transpose(3, 1, 2, 0),
    transposed_by_stored_descriptors: X[:128].T,
    beyond_the_end_but_not_used: np.concatenate([X[128:, :16], X[128:, 24:40]], axis=1),
    every_second_column: X[:128, 1::2],
    from_a_partition_on: X[32:64, 5:13],
    repeated: np.stack([X[:128], X[:128]], axis=1),
    backwards_in_hbm: X[:128, None, ::-1],
    as_integers: X[:128].view(np.int32) & 0x7F800000,
    rows_from_a_register: X[37:165, 8:24],
    columns_from_a_register: X[:128, 37:53],
    scalar_offset: X[38:166],
    scalar_offset_of_columns: X[:128, 37:41],
    gathered: X[ROWS[:, 0], 8:24],
    scattered: _scattered(),
}


@pytest.mark.parametrize("order", ORDERS, ids=["program", "dataflow"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_patterns(kernel: Callable[..., Tensor], order: core.Order | None) -> None:
    result = nki.simulate(nki.jit(kernel), order)(X, ROWS, PLACE)
    np.testing.assert_array_equal(result, KERNELS[kernel])


def test_a_place_outside_of_the_tensor_is_found_when_the_program_runs() -> None:
    with pytest.raises(NeuronError, match=r"kernels.py:\d+"):
        nki.simulate(nki.jit(rows_from_a_register))(X, ROWS, np.full((1, 1), 200, np.int32))
    with pytest.raises(NeuronError, match=r"kernels.py:\d+"):
        nki.simulate(nki.jit(gathered))(X, ROWS + 256, PLACE)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], type[NeuronError], str]] = {
    "leaves": (
        lambda x: nisa.dma_copy(tile((128, 64)), x.ap([[64, 128], [1, 64]], offset=129 * 64)),
        OutOfBoundsError,
        r"out of bounds .*\(256, 64\)",
    ),
    "partitions": (
        lambda x: loaded(x[:128]).ap([[128, 64], [1, 64]]),
        UnsupportedProgramError,
        "first step is 128 elements, but partitions have 64",
    ),
    "width of columns in HBM": (
        lambda x: x[:, :63].view(nl.uint8).view(nl.uint64),
        UnsupportedProgramError,
        "cannot be viewed as uint64, which has another width",
    ),
    "width of a part": (
        lambda x: copied(loaded(x[:128]), (128, 64)).view(nl.bfloat16)[:, :63].view(nl.float32),
        UnsupportedProgramError,
        "fills whole elements",
    ),
    "transpose by GpSimd": (
        lambda x: nisa.dma_transpose(tile((64, 128)), x[:128], dge_mode=nisa.dge_mode.swdge),
        UnsupportedProgramError,
        "takes no dge_mode=swdge; pass nisa.dge_mode.none or nisa.dge_mode.hwdge",
    ),
    "transpose by hardware": (
        lambda x: nisa.dma_transpose(tile((64, 16)), x[:16], dge_mode=nisa.dge_mode.hwdge),
        UnsupportedProgramError,
        r"takes 16 rows .* float32\[16, 64\]",
    ),
    "register of partitions": (
        lambda x: loaded(x[:128])[nl.ds(nisa.register_alloc(3), 32)],
        UnsupportedProgramError,
        "never partitions",
    ),
    "index of an engine": (
        lambda x: nl.exp(x.ap([[64, 128], [1, 64]], vector_offset=tile((128, 1), nl.int32))),
        UnsupportedProgramError,
        "take a tensor with vector_offset",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_pattern_is(case: str) -> None:
    body, error, words = REFUSED[case]
    with pytest.raises(error, match=rf"test_patterns.py:\d+: .*{words}"):
        nki.simulate(nki.jit(body))(X)


NAMED = RNG.permutation(256)[:100].astype(np.int32).reshape(100, 1)
ADDED = RNG.standard_normal((100, 64), np.float32)


def added_to_rows(table: Tensor, rows: Tensor, added: Tensor) -> Tensor:
    there = table.ap([[64, 100], [1, 64]], vector_offset=loaded(rows))
    nisa.dma_compute(dst=there, srcs=[there, loaded(added)], reduce_op=nl.add)
    return table


def rows_added(table: Tensor, rows: Tensor, added: Tensor) -> Tensor:
    total = loaded(added)
    there = table.ap([[64, 100], [1, 64]], vector_offset=loaded(rows))
    nisa.dma_compute(dst=total, srcs=[there, total], reduce_op=nl.add, scales=[1.0, 1.0])
    return stored(total)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("kernel", [added_to_rows, rows_added], ids=lambda k: k.__name__)
def test_sums_at_rows_that_a_tile_names(
    kernel: Callable[..., Tensor], order: core.Order | None
) -> None:
    expected = X.copy()
    expected[NAMED[:, 0]] += ADDED
    result = nki.simulate(kernel, order)(X.copy(), NAMED, ADDED)
    np.testing.assert_array_equal(
        result, expected if kernel is added_to_rows else expected[NAMED[:, 0]]
    )


SUMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "only sources": (lambda there, t: (t, [there]), "two sources, of which one is dst itself"),
    "another place": (lambda there, t: (tile((100, 64)), [there, t]), "one is dst itself"),
    "no list": (lambda there, t: (t, there), "no srcs=a tensor.*pass a list of tensors"),
    "numbers": (lambda there, t: (t, [there, 3.0]), r"no srcs=\[.*pass a list of tensors"),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_that_dma_does_not_make(case: str) -> None:
    operands, words = SUMS[case]

    def kernel(table: Tensor, rows: Tensor, added: Tensor) -> Tensor:
        there = table.ap([[64, 100], [1, 64]], vector_offset=loaded(rows))
        dst, srcs = operands(there, loaded(added))
        nisa.dma_compute(dst, srcs, nl.add)
        return table

    with pytest.raises(NeuronError, match=rf"test_patterns.py:\d+: .*{words}"):
        nki.simulate(kernel)(X, NAMED, ADDED)
