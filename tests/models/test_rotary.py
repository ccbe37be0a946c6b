"""Rotary extensions against their papers, in FP64 and by what they promise."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import ConfigError
from models.layers.rotary import Rotary, apply_rotary, frequencies, turn
from models.published.defaults import Defaults
from models.weights.fields import Fields
from models.weights.rotary_fields import read_rotary

HEAD = 64
PLAIN = 10_000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))  # radians per position


def of(rotary: Rotary, length: int | None = None) -> np.ndarray:
    return np.asarray(frequencies(rotary, HEAD, length), np.float64)


def test_linear_divides_every_frequency() -> None:
    np.testing.assert_allclose(of(Rotary(kind="linear", factor=4.0)), PLAIN / 4, rtol=1e-6)


def test_llama3_stretches_slow_pairs_and_leaves_fast_ones() -> None:
    """Llama 3.1: wavelengths above 8192 / 1 are stretched, below 8192 / 4 they are not."""
    rotary = Rotary(
        kind="llama3",
        factor=8.0,
        original_length=8192,
        low_frequency_factor=1.0,
        high_frequency_factor=4.0,
    )
    got, wavelengths = of(rotary), 2 * np.pi / PLAIN
    slow, fast = wavelengths > 8192, wavelengths < 2048
    assert slow.any()
    assert fast.any()
    np.testing.assert_allclose(got[slow], PLAIN[slow] / 8, rtol=1e-6)
    np.testing.assert_allclose(got[fast], PLAIN[fast], rtol=1e-6)
    between = ~slow & ~fast
    smooth = (8192 / wavelengths[between] - 1) / 3
    expected = (1 - smooth) * PLAIN[between] / 8 + smooth * PLAIN[between]
    np.testing.assert_allclose(got[between], expected, rtol=1e-6)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramps_between_two_numbers_of_turns(truncate: bool) -> None:
    rotary = Rotary(
        kind="yarn", factor=16.0, original_length=4096, truncate=truncate, theta=10_000.0
    )
    got = of(rotary)
    turns = 4096 * PLAIN / (2 * np.pi)
    pairs = np.arange(HEAD // 2)
    low, high = (np.interp(-math.log(t), -np.log(turns), pairs) for t in (32, 1))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    ramp = np.clip((pairs - low) / (high - low), 0, 1)
    np.testing.assert_allclose(got, PLAIN * (ramp / 16 + 1 - ramp), rtol=2e-5)
    assert got[0] == pytest.approx(1.0)
    assert got[-1] == pytest.approx(PLAIN[-1] / 16, rel=1e-6)


@pytest.mark.parametrize(("length", "long"), [(None, False), (16, False), (17, True)])
def test_longrope_takes_the_factors_of_the_texts_length(length: int | None, long: bool) -> None:
    short_factors = tuple(np.linspace(1, 2, HEAD // 2))
    long_factors = tuple(np.linspace(3, 40, HEAD // 2))
    rotary = Rotary(
        kind="longrope",
        original_length=16,
        short_factors=short_factors,
        long_factors=long_factors,
    )
    factors = np.array(long_factors if long else short_factors)
    np.testing.assert_allclose(of(rotary, length), PLAIN / factors, rtol=1e-6)


def test_a_part_of_the_head_turns_and_the_rest_stays() -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 2, 8)).astype(np.float32)
    by = turn(jnp.arange(4), 8, Rotary(fraction=0.5))
    got = np.asarray(apply_rotary(jnp.asarray(x), by))
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])
    whole = apply_rotary(jnp.asarray(x[..., :4]), turn(jnp.arange(4), 4, Rotary()))
    np.testing.assert_allclose(got[..., :4], whole, rtol=1e-6)


def test_the_magnitude_scales_what_turns() -> None:
    x = jnp.ones((1, 3, 1, 8))
    plain = apply_rotary(x, turn(jnp.arange(3), 8, Rotary()))
    scaled = apply_rotary(x, turn(jnp.arange(3), 8, Rotary(magnitude=1.5)))
    np.testing.assert_allclose(scaled, 1.5 * plain, rtol=1e-6)


BASE = {"max_position_embeddings": 64}
LONGROPE = {"short_factor": [1, 2], "long_factor": [3, 4]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Rotary()),
        ({"rope_theta": 500.0}, Rotary(theta=500.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, Rotary(theta=7.0)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}},
            Rotary(theta=5e5, kind="linear", factor=2.0),
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2},
                "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
            },
            Rotary(kind="linear", factor=2.0),
        ),
        (
            {"rope_scaling": {}, "rope_parameters": {"rope_theta": 7.0}},
            Rotary(theta=7.0),
        ),
        ({"partial_rotary_factor": 0.25}, Rotary()),  # most families do not know it
        (
            {"rope_scaling": {"type": "su", **LONGROPE}, "original_max_position_embeddings": 16},
            Rotary(
                kind="longrope",
                original_length=16,
                short_factors=(1.0, 2.0),
                long_factors=(3.0, 4.0),
                magnitude=math.sqrt(1 + math.log(4) / math.log(16)),
            ),
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                }
            },
            Rotary(kind="yarn", factor=4.0, original_length=16, magnitude=0.1 * math.log(4.0) + 1),
        ),
    ],
)
def test_both_spellings_of_config_json(values: dict[str, Any], expected: Rotary) -> None:
    assert read_rotary(Fields(BASE | values, "test")) == expected


def test_a_family_that_knows_it_turns_a_part_of_each_head() -> None:
    fields = Fields(BASE | {"partial_rotary_factor": 0.25}, "test")
    assert read_rotary(fields.of_family(Defaults({"partial_rotary_factor": 1.0}))).fraction == 0.25


@pytest.mark.parametrize("length", [None, 8, 16, 17, 64])
def test_dynamic_stretches_texts_beyond_the_old_context(length: int | None) -> None:
    rotary = Rotary(kind="dynamic", factor=3.0, original_length=16)
    grown = 3.0 * max(length or 0, 16) / 16 - 2.0
    theta = 10_000.0 * grown ** (HEAD / (HEAD - 2))
    expected = theta ** (-np.arange(HEAD // 2) / (HEAD // 2))
    np.testing.assert_allclose(of(rotary, length), expected, rtol=1e-5)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="has rope_type='spiral': choose one of default, lin"):
        read_rotary(Fields(BASE | {"rope_scaling": {"rope_type": "spiral"}}, "test"))
    with pytest.raises(ConfigError, match="the rotary kind 'spiral' is not supported"):
        Rotary(kind="spiral")
