"""Stochastic rounding is unbiased, and so are the random bits it is made with."""

from __future__ import annotations

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.formats import FLOAT16, FORMATS, Format
from neuronjax.rounding import JAX, NUMPY, nearest, random_bits, stochastic

DRAWS = 10**7
FRACTIONS = 20

BASES = [
    ("bfloat16", 1.0),
    ("float16", 2.0**-24),  # the smallest subnormal
    ("float8_e4m3", 0.0),  # below the smallest subnormal
    ("float8_e4m3fn", -3.5),
    ("float8_e5m2", 2.0**-15),
]
"""Format and the value of it from which the fractions of an ULP are counted."""


@partial(jax.jit, static_argnames="form")
def count_ups(x: jax.Array, base: jax.Array, seed: jax.Array, form: Format) -> jax.Array:
    """How often x becomes something farther from zero than base."""
    bits = random_bits(JAX, jnp.arange(DRAWS, dtype=jnp.uint32), jnp.full(1, seed))
    rounded = stochastic(JAX, jnp.full(DRAWS, x), bits, form)
    return (jnp.abs(rounded) > jnp.abs(base)).sum(dtype=jnp.int32)


@pytest.mark.parametrize(("name", "base"), BASES)
def test_mean_error_over_ten_million_draws(name: str, base: float) -> None:
    form = FORMATS[name]
    exponent = max(math.frexp(base)[1] - 1 if base else form.min_exponent, form.min_exponent)
    ulp = 2.0 ** (exponent - form.mantissa_bits)
    for seed in range(FRACTIONS):
        x = np.float32(base + math.copysign((seed + 0.37) / FRACTIONS * ulp, base))
        ups = int(count_ups(x, np.float32(base), np.uint32(seed), form))
        # The distance of the FP32 number itself, which need not be the one asked for.
        fraction = (abs(float(x)) - abs(base)) / ulp
        error = ups / DRAWS - fraction
        assert abs(error) < 1e-3
        assert abs(error) < 5 * math.sqrt(fraction * (1 - fraction) / DRAWS)


def test_documented_example() -> None:
    """FP16 1024 + 0.5, 2048 times (Neuron docs, "Rounding modes"): lost, or close to 2048."""
    half, streams = np.float32(0.5), np.arange(1000, dtype=np.uint32)
    lost, kept = np.float32([1024.0]), np.full(1000, 1024.0, np.float32)
    for step in range(2048):
        bits = random_bits(NUMPY, np.full(1, step, np.uint32), streams)
        lost = nearest(NUMPY, lost + half, FLOAT16)
        kept = stochastic(NUMPY, kept + half, bits, FLOAT16)
    assert lost == [1024.0]
    assert abs(kept[0] - 2048) < 0.02 * 2048  # the default seed
    # Half of the steps up to 2048 are up, by 1: a walk with a deviation of about 23.
    assert abs(kept.mean() - 2048) < 5 * 23 / math.sqrt(len(kept))
    assert 15 < kept.std() < 30


COUNTERS = np.arange(1 << 18, dtype=np.uint32)
DEVIATIONS = 5
"""Deviations from chance that pass, in standard deviations."""


def stream(seed: int, counters: np.ndarray = COUNTERS) -> np.ndarray:
    return random_bits(NUMPY, counters, np.full(1, seed, np.uint32))


def shares(words: np.ndarray) -> np.ndarray:
    """How often each of the 32 bits is set."""
    return np.array([np.count_nonzero(words & np.uint32(1 << i)) for i in range(32)]) / len(words)


SEEDS = [0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x9E3779B1]


@pytest.mark.parametrize("spacing", [1, 1 << 14])
@pytest.mark.parametrize("seed", SEEDS)
def test_bits_are_fair(seed: int, spacing: int) -> None:
    words = stream(seed, COUNTERS * np.uint32(spacing))
    assert len(np.unique(words)) == len(words)
    assert np.abs(shares(words) - 0.5).max() < DEVIATIONS * 0.5 / math.sqrt(len(words))
    for byte in words.view(np.uint8).reshape(-1, 4).T:
        expected = len(byte) / 256
        chi_squared = ((np.bincount(byte, minlength=256) - expected) ** 2 / expected).sum()
        assert abs(chi_squared - 255) < DEVIATIONS * math.sqrt(2 * 255)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("lag", [1, 2, 3, 32, 1024, 65536])
def test_neighbours_are_uncorrelated(lag: int) -> None:
    words = stream(0)
    limit = DEVIATIONS / math.sqrt(len(words) - lag)
    assert abs(correlation(words[lag:], words[:-lag])) < limit


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SEEDS, 2)))
def test_seeds_are_uncorrelated(one: int, other: int) -> None:
    a, b = stream(one), stream(other)
    limit = DEVIATIONS / math.sqrt(len(a) - 1)
    for lag in (0, 1):
        assert abs(correlation(a[lag:], b[: len(b) - lag])) < limit
    assert np.abs(shares(a ^ b) - 0.5).max() < DEVIATIONS * 0.5 / math.sqrt(len(a))


@pytest.mark.parametrize("shift", [1, 2, 5, 1 << 10, 1 << 17])
def test_streams_are_not_permutations_of_each_other(shift: int) -> None:
    """Seeds chosen so that the first round gives both streams the same numbers, `shift` apart."""
    other = shift * pow(0x9E3779B1, -1, 1 << 32) % (1 << 32)
    a, b = stream(0), stream(other)
    chance = len(a) ** 2 / 2**32
    assert len(np.intersect1d(a, b)) < chance + DEVIATIONS * math.sqrt(chance)
    aligned = b[COUNTERS ^ shift]
    assert abs(correlation(a, aligned)) < DEVIATIONS / math.sqrt(len(a))
    assert np.abs(shares(a ^ aligned) - 0.5).max() < DEVIATIONS * 0.5 / math.sqrt(len(a))


@pytest.mark.parametrize("bit", range(32))
def test_each_bit_of_counter_and_seed_counts(bit: int) -> None:
    """Flipping one bit of the input flips every bit of the output in about half of all cases."""
    flip = np.uint32(1 << bit)
    counters = COUNTERS[: 1 << 15] * np.uint32(0x9E3779B1)
    for flipped in (stream(5, counters ^ flip), stream(5 ^ int(flip), counters)):
        assert np.abs(shares(stream(5, counters) ^ flipped) - 0.5).max() < 0.05


def test_jax_draws_the_same_bits() -> None:
    found = jax.jit(partial(random_bits, JAX))(COUNTERS, np.full(1, 7, np.uint32))
    np.testing.assert_array_equal(found, stream(7))
