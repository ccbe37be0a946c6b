"""Dropout: what it keeps, by how much that grows, and what decides about it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.hashed_random import HASHED
from models.layers.dropout import Dropout

KEYS = jax.random.split(jax.random.key(3, impl=HASHED), 3)


def dropped(rate: float, x: jax.Array, keys: jax.Array = KEYS) -> np.ndarray:
    layer = Dropout(rate)
    layer.keys = keys[: x.shape[0]]
    return np.asarray(layer(x))


@pytest.mark.parametrize("shape", [(3, 257, 64), (3, 8192), (1, 1, 4096)])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_share_and_scale(rate: float, shape: tuple[int, ...]) -> None:
    y = dropped(rate, jnp.ones(shape))
    deviation = np.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * deviation
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=2e-5)


def test_every_row_and_place_has_its_own_chance() -> None:
    y = dropped(0.5, jnp.ones((3, 128, 64))) != 0
    rows = np.concatenate([y.reshape(3, 2, -1)[:, half] for half in (0, 1)])
    correlations = np.corrcoef(rows)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(rows.shape[1])


def test_a_row_does_not_depend_on_the_others() -> None:
    x = jnp.ones((3, 9, 16))
    alone = [dropped(0.3, x[:1], KEYS[row : row + 1])[0] for row in range(3)]
    np.testing.assert_array_equal(dropped(0.3, x), alone)


def test_without_keys_nothing_is_dropped() -> None:
    x = jnp.ones((3, 4, 5))
    assert Dropout(0.5)(x) is x
