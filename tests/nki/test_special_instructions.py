"""Gathers, selections, transfers that compute, random numbers, MX and registers, beside numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import KernelWarning, NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(1)
X, Y = (RNG.standard_normal((32, 64), dtype=np.float32) for _ in range(2))
PLACES = RNG.integers(0, 64, (32, 2)).astype(np.uint16)
SNAKE = RNG.permutation(48).reshape(3, 16).T.astype(ml_dtypes.bfloat16)
SPARSE = (RNG.random((32, 64)) < 0.3).astype(np.int32)
SEGMENTS = np.repeat([1, 2, 5, 0], [10, 20, 30, 4]).astype(np.int32)[None]
BOUNDS = RNG.integers(0, 64, (2, 32, 1)).astype(np.float32)
POWERS = np.exp2(RNG.integers(-2, 3, (2, 32, 128))).astype(ml_dtypes.bfloat16)
STATE = RNG.integers(1, 1 << 32, (16, 6), dtype=np.uint32)


def local_gather(x: Tensor, places: Tensor) -> Tensor:
    result = tile((32, 32))
    nisa.local_gather(result, loaded(x), loaded(places))
    return stored(result)


def nonzero(x: Tensor) -> Tensor:
    result = tile((32, 65), nl.int32)
    nisa.memset(result, 7)
    nisa.nonzero_with_count(result, loaded(x), index_offset=16, padding_val=-2)
    return stored(result)


def topk(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = tile((16, 8), nl.bfloat16), tile((16, 8), nl.uint32)
    nisa.memset(values, 0.0)
    nisa.memset(places, 0)
    nisa.topk(values, places, loaded(x), n=42)
    return stored(values), stored(places)


def sequence_bounds(x: Tensor) -> Tensor:
    result = tile((1, 2, 64), nl.int32)
    nisa.sequence_bounds(result, loaded(x))
    return stored(result)


def in_range(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    result, greatest = tile((32, 64)), tile((32, 1))
    nisa.range_select(
        result, loaded(x), nl.greater_equal, nl.less, loaded(low), loaded(high),
        reduce_res=greatest, on_false_value=-3.4028235e38,
    )  # fmt: skip
    return stored(result), stored(greatest)


def turned_on_the_way(x: Tensor) -> Tensor:
    result = tile((64, 32))
    nisa.dma_transpose(result, x)
    return stored(result)


def turned_by_vector(x: Tensor) -> Tensor:
    result = tile((32, 32))
    nisa.nc_transpose(result, loaded(x[:, 0:32]), engine=nisa.engine.vector)
    return stored(result)


def added_on_the_way(x: Tensor, y: Tensor) -> Tensor:
    result = tile((32, 64))
    nisa.dma_compute(result, [x, y], nl.add, scales=[1.0, 1.0])
    return stored(result)


def product_of_blocks(x: Tensor, y: Tensor) -> Tensor:
    words, scales = [], []
    for operand in (x, y):
        words.append(tile((32, 32), nl.float8_e4m3fn_x4))
        scales.append(tile((32, 32), nl.uint8))
        nisa.quantize_mx(words[-1], loaded(operand), scales[-1])
    sums, result = tile((32, 32), buffer=nl.psum), tile((32, 32))
    for _ in range(2):
        nisa.nc_matmul_mx(sums, *words, *scales)
    nisa.tensor_copy(result, sums)
    return stored(result)


def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    results = []
    for probability in (0.0, 1.0):
        results.append(tile(x.shape))
        nisa.dropout(results[-1], loaded(x), probability)
    return stored(results[0]), stored(results[1])


def restored(state: Tensor) -> tuple[Tensor, Tensor]:
    """The state after it was set, and the difference of numbers drawn from it twice."""
    first, drawn, again = tile((16, 6), nl.uint32), tile((16, 8), nl.int32), tile((16, 8), nl.int32)
    seeds = loaded(state)
    nisa.rand_set_state(seeds)
    nisa.rand_get_state(first)
    nisa.rng(drawn, engine=nisa.engine.gpsimd)
    nisa.rand_set_state(seeds)
    nisa.rng(again, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(again, again, drawn, nl.bitwise_xor)
    return stored(first), stored(again)


def counted_in_a_register(x: Tensor) -> Tensor:
    result, source = tile((1, 2), nl.int32), loaded(x)
    register = nisa.register_alloc(int(nisa.get_nc_version()))
    nisa.register_store(result[:, 0:1], register)
    nisa.register_load(register, source[:, 30:31])
    other = nisa.register_alloc()
    nisa.register_move(other, register)
    nisa.register_store(result[:, 1:2], other)
    return stored(result)


def _locally_gathered() -> np.ndarray:
    lists = PLACES.reshape(2, 16, 2).transpose(0, 2, 1).reshape(2, 32)
    return np.take_along_axis(X.reshape(2, 16, 64), lists[:, None].astype(int), 2).reshape(32, 32)


def _nonzero() -> np.ndarray:
    result = np.full((32, 65), 7)
    for row in (0, 16):
        places = np.flatnonzero(SPARSE[row])
        result[row] = [*(places + 16), *[-2] * (64 - len(places)), len(places)]
    return result


def _topk() -> tuple[np.ndarray, np.ndarray]:
    flat = SNAKE.T.reshape(-1)[:42].astype(np.float64)
    places, values = np.zeros((16, 8)), np.zeros((16, 8))
    places[:8, 0] = np.argsort(flat)[-8:]
    values[:8, 0] = np.sort(flat)[-8:]
    return values, places


def _bounds() -> np.ndarray:
    starts, ends = np.repeat([[0, 10, 30, 64], [10, 30, 60, -1]], [10, 20, 30, 4], axis=1)
    return np.stack([starts, ends])[None]


def _in_range() -> tuple[np.ndarray, np.ndarray]:
    place = np.arange(64)
    inside = (place >= BOUNDS[0]) & (place < BOUNDS[1])
    result = np.where(inside, X, np.finfo(np.float32).min)
    return result, result.max(1, keepdims=True)


def _product_of_blocks() -> np.ndarray:
    left, right = POWERS.astype(np.float64).reshape(2, 32, 32, 4)
    return 2 * np.einsum("pmj,pnj->mn", left, right)


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments and what it returns."""

    kernel: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    expected: np.ndarray | tuple[np.ndarray, ...]
    chip: str = "trainium2"


CASES = [
    Case(local_gather, (X, PLACES), _locally_gathered()),
    Case(nonzero, (SPARSE,), _nonzero()),
    Case(topk, (SNAKE,), _topk()),
    Case(sequence_bounds, (SEGMENTS,), _bounds()),
    Case(in_range, (X, *BOUNDS), _in_range()),
    Case(turned_on_the_way, (X,), X.T),
    Case(turned_by_vector, (X,), X[:, :32].T),
    Case(added_on_the_way, (X, Y), X + Y),
    Case(product_of_blocks, tuple(POWERS), _product_of_blocks(), "trainium3"),
    Case(dropped, (X,), (X, np.zeros_like(X))),
    Case(restored, (STATE,), (STATE, np.zeros((16, 8)))),
    Case(counted_in_a_register, (SEGMENTS,), np.array([[4, 5]]), "trainium3"),
]


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1)], ids=["program", "dataflow"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)
def test_instructions(case: Case, order: core.Order | None) -> None:
    results = nki.simulate(nki.jit(case.kernel), order, case.chip)(*case.arrays)
    expected = case.expected if isinstance(results, tuple) else (case.expected,)
    given = results if isinstance(results, tuple) else (results,)
    for value, wanted in zip(given, expected, strict=True):
        np.testing.assert_array_equal(value.astype(np.float64), wanted)


@nki.jit
def uniform(seed: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers between -1 and 3, drawn twice after the same seed."""
    numbers = []
    for _ in range(2):
        nisa.set_rng_seed(loaded(seed))
        numbers.append(tile((128, 512)))
        nisa.rand2(numbers[-1], -1.0, 3.0)
    return stored(numbers[0]), stored(numbers[1])


def test_uniform_numbers() -> None:
    first, again = nki.simulate(uniform, target="trainium3")(np.array([[7]], np.uint32))
    np.testing.assert_array_equal(first, again)
    # Moments of 65,536 numbers: five standard errors.
    assert abs(first.mean() - 1) < 5 * np.sqrt(16 / 12 / first.size)
    assert first.min() >= -1
    assert first.max() <= 3
    assert len(np.unique(first)) > 0.9 * first.size


def _at(shape: tuple[int, ...], dtype: Any) -> Tensor:
    return nl.ndarray(shape, dtype, nl.sbuf, address=(0, 4096))


@nki.jit
def scales_in_used_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    """All rows of the scales of a block, of which four are written, where another tile was."""
    before, words = _at((32, 8), nl.float32), tile((32, 32), nl.float8_e4m3fn_x4)
    nisa.memset(before, 1.0)
    ones, scales = stored(before), _at((32, 32), nl.uint8)
    nisa.quantize_mx(words, loaded(x), scales)
    return ones, stored(scales)


def test_rows_without_scales_are_unwritten() -> None:
    """A warning, since kernels may move them along; of another tile they were no error."""
    with pytest.warns(KernelWarning, match=r"\d+: .* reads 896 of 1024 elements .* nothing has"):
        _, scales = nki.simulate(scales_in_used_memory, target="trainium3")(POWERS[0])
    greatest = np.abs(POWERS[0].astype(np.float32)).reshape(4, 8, 32, 4).max((1, 3))
    np.testing.assert_array_equal(scales[:4], np.log2(greatest) - 7 + 127)


def gathered_on_gpsimd(x: Tensor) -> Tensor:
    result = tile((32, 32))
    nisa.nc_transpose(result, loaded(x[:, 0:32]), engine=nisa.engine.gpsimd)
    return stored(result)


def scaled_on_the_way(x: Tensor) -> Tensor:
    result = tile((32, 64))
    nisa.dma_compute(result, [x, x], nl.add, scales=[2.0, 1.0])
    return stored(result)


REFUSED = {
    gathered_on_gpsimd: r"instructions.py:\d+: nc_transpose cannot run on engine gpsimd",
    scaled_on_the_way: r"test_special_instructions.py:\d+: scales of dma_compute must be 1.0",
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_what_is_refused(kernel: Callable[..., Any]) -> None:
    with pytest.raises(NeuronError, match=REFUSED[kernel]):
        nki.simulate(nki.jit(kernel))(X)
