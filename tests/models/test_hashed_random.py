"""The generator `HASHED`: uniform, independent by key, alike in batches and on all platforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.hashed_random import HASHED

KEY = jax.random.key(7, impl=HASHED)
COUNT = 1 << 16


def five_deviations(count: int) -> float:
    return 5 / np.sqrt(count)


def test_bits_are_uniform() -> None:
    words = np.asarray(jax.random.bits(KEY, (COUNT,)))
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    assert np.abs(2 * bits.mean(0) - 1).max() < five_deviations(COUNT)
    uniform = np.asarray(jax.random.uniform(KEY, (COUNT,)), np.float64)
    assert abs(uniform.mean() - 0.5) < five_deviations(12 * COUNT)
    counts = np.histogram(uniform, 256, (0, 1))[0]
    assert abs(((counts - COUNT / 256) ** 2).sum() / (COUNT / 256) - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("make", ["fold_in", "split", "seeds"])
def test_keys_draw_independently(make: str) -> None:
    numbers = jnp.arange(48)
    keys = {
        "fold_in": lambda: jax.vmap(lambda number: jax.random.fold_in(KEY, number))(numbers),
        "split": lambda: jax.random.split(KEY, len(numbers)),
        "seeds": lambda: jax.vmap(lambda seed: jax.random.key(seed, impl=HASHED))(numbers),
    }[make]()
    rows = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (4096,)))(keys))
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(correlations).max() < five_deviations(4096)


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
def test_a_row_of_a_batch_is_the_row_alone(platform: str) -> None:
    with jax.default_device(jax.devices(platform)[0]):
        keys = jax.random.split(KEY, 3)
        batch = jax.jit(jax.vmap(lambda key: jax.random.bernoulli(key, 0.1, (5, 7))))(keys)
        for key, row in zip(keys, batch, strict=True):
            np.testing.assert_array_equal(jax.random.bernoulli(key, 0.1, (5, 7)), row)
    words = jax.random.bits(jax.device_put(KEY, jax.devices(platform)[0]), (4,))
    np.testing.assert_array_equal(words, jax.random.bits(KEY, (4,)))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_width_of_bits(width: int) -> None:
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(KEY, (4096,), f"uint{width}"))
    assert bits.dtype.itemsize * 8 == width
    ones = np.bitwise_count(bits).mean()
    assert abs(2 * ones / width - 1) < five_deviations(4096 * width)
