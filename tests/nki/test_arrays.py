"""Arrays of truth values as arguments and results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 8), np.float32)
MASK = RNG.random((16, 8)) < 0.5


def chosen(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x where the mask is true, what is positive, and the mask."""
    assert mask.dtype == nl.bool_
    on_chip, result = loaded(x), nl.zeros(x.shape, x.dtype)
    nisa.tensor_copy_predicated(result, on_chip, loaded(mask))
    is_positive = tile(x.shape, nl.bool_)
    nisa.tensor_scalar(is_positive, on_chip, nl.greater, 0.0)
    return stored(result), stored(is_positive), mask


def check(results: Any) -> None:
    values, is_positive, mask = map(np.asarray, results)
    np.testing.assert_array_equal(values, np.where(MASK, X, 0))
    for got, expected in ((is_positive, X > 0), (mask, MASK)):
        assert got.dtype == np.bool_
        np.testing.assert_array_equal(got, expected)


def test_truth_values_by_every_door() -> None:
    check(nki.simulate(chosen)(X, MASK))
    kernel = nki.jit(chosen)
    check(kernel(X, MASK))
    check(jax.jit(kernel)(jnp.asarray(X), jnp.asarray(MASK)))
    stacked = jax.vmap(kernel)(jnp.stack([X, X]), jnp.stack([MASK, MASK]))
    check([values[1] for values in stacked])


def test_truth_values_that_a_kernel_writes_to() -> None:
    def inverted(x: Tensor) -> Tensor:
        on_chip = loaded(x)
        nisa.dma_copy(x, nl.equal(on_chip, 0.0))
        return x

    given = MASK.copy()
    result = nki.simulate(inverted)(given)
    for got in (given, result, np.asarray(nki.jit(inverted)(MASK))):
        np.testing.assert_array_equal(got, ~MASK)
        assert got.dtype == np.bool_


def test_constants_and_views_of_truth_values() -> None:
    def kernel(x: Tensor) -> Tensor:
        mask = loaded(nl.shared_constant(MASK))
        bits = tile(x.shape, nl.uint8)
        nisa.tensor_scalar(bits, mask.view(nl.uint8), nl.bitwise_xor, 1)
        return stored(bits)

    np.testing.assert_array_equal(nki.simulate(kernel)(X), (~MASK).astype(np.uint8))


def test_results_are_seen_as_the_kernel_returns_them() -> None:
    """In another shape than that of the memory, or as another type of the same width."""

    def kernel(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = stored(loaded(x))
        return values, values.reshape((8, 16)), values.view(nl.uint32).reshape((2, 64))

    expected = X, X.reshape(8, 16), X.view(np.uint32).reshape(2, 64)
    for door in (nki.simulate(kernel), nki.jit(kernel), jax.jit(nki.jit(kernel))):
        for got, wanted in zip(door(X), expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)
