"""Kernels whose tiles do not fit in their own order, compared with numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import SbufOverflowError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

WIDE = 12288
"""Columns of a tile of FP32 that takes 48 KiB of a partition: four fit into SBUF, six do not."""
X = np.random.default_rng(2).standard_normal((6, 4, WIDE), dtype=np.float32)
MANY = np.broadcast_to(X[0], (18, 4, WIDE))
"""More parts than lie beside and behind each other."""


def shifted(x: Tensor) -> Tensor:
    """Each part of `x` plus its number and those before; all are loaded first."""
    return _running_sums([loaded(x[number]) for number in range(x.shape[0])])


def doubled(x: Tensor) -> Tensor:
    """The same with twice the parts, all of which are made first."""
    parts = []
    for number in range(x.shape[0]):
        part, twice = loaded(x[number]), tile((4, WIDE))
        nisa.tensor_tensor(twice, part, part, nl.add)
        parts.append(twice)
    return _running_sums(parts)


def _running_sums(parts: Sequence[Tensor]) -> Tensor:
    sums, bias = tile((4, WIDE)), tile((4, 1))
    nisa.memset(sums, 0.0)
    out = nl.ndarray((len(parts), 4, WIDE), dtype=nl.float32, buffer=nl.shared_hbm)
    for number, part in enumerate(parts):
        nisa.memset(bias, float(number))
        nisa.tensor_tensor(sums, sums, part, nl.add)
        nisa.tensor_scalar(part, sums, nl.add, bias)
        nisa.dma_copy(out[number], part)
    return out


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1, adversarial=True)])
@pytest.mark.parametrize(("function", "factor"), [(shifted, 1), (doubled, 2)])
def test_loads_wait_until_they_are_used(
    function: Callable[..., Tensor], factor: int, order: core.Order | None
) -> None:
    kernel, numbers = nki.jit(function), np.arange(6, dtype=np.float32)[:, None, None]
    expected = np.add.accumulate(factor * X) + numbers
    np.testing.assert_array_equal(nki.simulate(kernel, order)(X), expected)
    assert any("loads wait until they are used" in note for note in kernel.trace(X).notes)
    assert not any("loads wait" in note for note in kernel.trace(X[:1]).notes)


@nki.jit
def overwritten(x: Tensor) -> Tensor:
    """Parts of an array that the kernel writes to: they must be loaded before."""
    parts = [loaded(x[number]) for number in range(x.shape[0])]
    for number, part in enumerate(parts):
        nisa.dma_copy(x[x.shape[0] - 1 - number], part)
    return x


def test_loads_of_what_is_written_to_do_not_wait() -> None:
    with pytest.raises(SbufOverflowError, match=r"do not fit into SBUF.*kernels.py:\d+"):
        overwritten.trace(MANY)
    few = X[:4].copy()
    np.testing.assert_array_equal(nki.simulate(overwritten)(few), X[3::-1])


@nki.jit
def summed_rows(x: Tensor) -> Tensor:
    """What does not fit at once, even late."""
    parts = [loaded(x[number]) for number in range(x.shape[0])]
    for part in parts[1:]:
        nisa.tensor_tensor(parts[0], parts[0], part, nl.add)
    for part in parts[1:]:
        nisa.tensor_tensor(parts[0], parts[0], part, nl.add)
    return stored(parts[0])


def test_tiles_that_are_needed_at_once_must_fit() -> None:
    with pytest.raises(SbufOverflowError, match="those alive at the same time exceed"):
        summed_rows.trace(MANY)


def sums_of_halves(x: Tensor) -> Tensor:
    """Tiles of 64 partitions, all of which are alive at the end, when their sum is computed."""
    parts = [tile((64, WIDE)) for _ in range(x.shape[0])]
    for number, part in enumerate(parts):
        nisa.dma_copy(part[0:32], x[number, 0:32])
        nisa.dma_copy(part[32:64], x[number, 32:64])
        nisa.tensor_scalar(part, part, nl.add, float(number))
    for part in parts[1:]:
        nisa.tensor_tensor(parts[0], parts[0], part, nl.add)
    return stored(parts[0])


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1, adversarial=True)])
def test_tiles_of_few_partitions_lie_beside_each_other(order: core.Order | None) -> None:
    kernel, x = nki.jit(sums_of_halves), np.broadcast_to(X[0, :1], (6, 64, WIDE))
    np.testing.assert_allclose(nki.simulate(kernel, order)(x), 6 * x[0] + 15, rtol=1e-5, atol=1e-5)
    compiled = kernel.trace(x)
    assert any("lie beside each other" in note for note in compiled.notes)
    assert {tile.partition for tile in compiled.program.body[0].buffers} == {0, 64}


def many_products(x: Tensor, count: int, has_one_tile: bool = False) -> Tensor:
    """More products than PSUM has banks, before the first result leaves it, perhaps by way of one
    tile for all."""
    number, products = (
        loaded(x),
        [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(count)],
    )
    for place, product in enumerate(products):
        nisa.nc_matmul(product, number[:, 128 * place : 128 * (place + 1)], number[:, :512])
    out = nl.ndarray((count, 128, 512), nl.float32, nl.shared_hbm)
    every = tile((128, count, 512))
    for place, product in enumerate(products):
        result = every[:, place] if has_one_tile else tile((128, 512))
        nisa.tensor_copy(result, product)
        if not has_one_tile:
            nisa.dma_copy(out[place], result)
    if has_one_tile:
        nisa.dma_copy(out.permute((1, 0, 2)), every)
    return out


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1, adversarial=True)])
@pytest.mark.parametrize("has_one_tile", [False, True])
def test_results_leave_psum_as_soon_as_they_are_complete(
    has_one_tile: bool, order: core.Order | None
) -> None:
    kernel, count = nki.jit(many_products), 16
    x = np.random.default_rng(3).integers(-4, 5, (128, 128 * count)).astype(np.float32)
    expected = x.T.reshape(count, 128, 128) @ x[:, :512]
    np.testing.assert_array_equal(nki.simulate(kernel, order)(x, count, has_one_tile), expected)
    assert any("leave PSUM as soon as" in note for note in kernel.trace(x, count).notes)
    assert not any("leave PSUM" in note for note in kernel.trace(x, 8).notes)
