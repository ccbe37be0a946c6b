"""Rotary position embedding (Su et al., "RoFormer", 2021) and its extensions to long contexts.

Pairs are (x[i], x[i + R/2]) in the half-split layout of Llama, where R is the part of a head that
turns. Frequencies are in radians per position.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.errors import ConfigError


@dataclass(frozen=True)
class Rotary:
    """The frequencies of a head's pairs. Raises ConfigError for an unknown kind."""

    theta: float = 10_000.0  # base of the wavelengths
    kind: str = "default"  # a key of KINDS
    fraction: float = 1.0  # the part of a head that turns; the rest passes unchanged
    magnitude: float = 1.0  # of cos and sin: the attention temperature of yarn and longrope
    factor: float = 1.0  # by which the context grew; unused by default and longrope
    original_length: int = 0  # context before it grew; unused by default and linear
    low_frequency_factor: float = 1.0  # llama3: slower than this many turns is stretched fully
    high_frequency_factor: float = 4.0  # llama3: faster than this many turns is left alone
    beta_fast: float = 32.0  # yarn: faster than this many turns is left alone
    beta_slow: float = 1.0  # yarn: slower than this many turns is stretched fully
    truncate: bool = True  # yarn: the ramp's ends are whole pairs
    short_factors: tuple[float, ...] = ()  # longrope: per pair, texts up to original_length
    long_factors: tuple[float, ...] = ()  # longrope: per pair, longer texts

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"the rotary kind {self.kind!r} is not supported; choose one of {', '.join(KINDS)}"
            )
        for name in ("theta", "fraction", "factor", "magnitude"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"rotary positions need a positive {name}, but {name}={value}")
        if self.fraction > 1:
            raise ConfigError(f"a rotary fraction must be at most 1, but fraction={self.fraction}")

    def width(self, head_dim: int) -> int:
        """R: how many numbers of a head are rotated."""
        return int(head_dim * self.fraction)


class Turn(NamedTuple):
    """Cosine and sine of the angles of every position and pair, FP32 [T, R/2] or [B, T, R/2]."""

    cos: jax.Array
    sin: jax.Array


def turn(
    positions: jax.Array, head_dim: int, rotary: Rotary, length: jax.typing.ArrayLike | None = None
) -> Turn:
    """The turn of positions [T] or [B, T]. `length` is that of the whole text, a number or, for
    several texts in a row, [B, T, 1]: only dynamic and longrope look at it, and are those of short
    texts without it."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies(rotary, head_dim, length)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if rotary.magnitude == 1:
        return Turn(cos, sin)
    return Turn(cos * rotary.magnitude, sin * rotary.magnitude)


def apply_rotary(x: jax.Array, turn: Turn) -> jax.Array:
    """Turns the first R numbers of every head of x [B, T, heads, H]; see Turn.

    The rotation is computed in FP32; the result has the dtype of `x`.
    """
    cos, sin = turn.cos[..., None, :], turn.sin[..., None, :]
    width = 2 * cos.shape[-1]
    first, second = jnp.split(x[..., :width].astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    turned = turned.astype(x.dtype)
    return turned if width == x.shape[-1] else jnp.concatenate([turned, x[..., width:]], axis=-1)


def frequencies(
    rotary: Rotary, head_dim: int, length: jax.typing.ArrayLike | None = None
) -> jax.Array:
    """Radians per position of every pair, FP32 [R/2], or [B, T, R/2] for lengths
    [B, T, 1]; see `turn`."""
    width = rotary.width(head_dim)
    exponents = jnp.arange(0, width, 2, dtype=jnp.float32) / width
    return KINDS[rotary.kind](rotary, rotary.theta**-exponents, length)


Kind = Callable[[Rotary, jax.Array, jax.typing.ArrayLike | None], jax.Array]


def _default(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    return base


def _linear(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    return base / rotary.factor


def _dynamic(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    """The base grows with a text beyond the old context, as far as it needs (the dynamic form of
    "NTK-aware scaled RoPE", bloc97 and emozilla, 2023)."""
    width = 2 * base.shape[0]
    if length is None or width == 2:
        return base
    beyond = jnp.maximum(jnp.asarray(length, jnp.float32) / rotary.original_length, 1.0) - 1
    exponents = jnp.arange(0, width, 2, dtype=jnp.float32) / (width - 2)
    return base * (rotary.factor * beyond + 1) ** -exponents


def _llama3(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    """Stretches slow pairs, leaves fast ones, and blends between (Llama 3.1)."""
    turns = rotary.original_length * base / (2 * math.pi)  # of each pair in the old context
    low, high = rotary.low_frequency_factor, rotary.high_frequency_factor
    blend = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return base * (blend + (1 - blend) / rotary.factor)


def _yarn(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    """Peng et al., "YaRN", 2023: a ramp over the pairs between two numbers of turns."""
    pairs = base.shape[0]

    def pair_with(turns: float) -> float:
        wavelengths = rotary.original_length / (turns * 2 * math.pi)
        return pairs * math.log(wavelengths) / math.log(rotary.theta)

    low, high = pair_with(rotary.beta_fast), pair_with(rotary.beta_slow)
    if rotary.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slope = max(high - low, 1e-3)
    stretched = jnp.clip((jnp.arange(pairs, dtype=jnp.float32) - low) / slope, 0.0, 1.0)
    return base * (stretched / rotary.factor + (1 - stretched))


def _longrope(rotary: Rotary, base: jax.Array, length: jax.typing.ArrayLike | None) -> jax.Array:
    """Ding et al., "LongRoPE", 2024: one stretch per pair, another set for long texts."""
    short = jnp.asarray(rotary.short_factors, jnp.float32)
    if length is None:
        return base / short
    long = jnp.asarray(rotary.long_factors, jnp.float32)
    return base / jnp.where(jnp.asarray(length) > rotary.original_length, long, short)


KINDS: Mapping[str, Kind] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
