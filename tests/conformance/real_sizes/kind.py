"""What a kind of program is: choices, plainest first, and a function that writes the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np
from jax import numpy as jnp

FLOATS = ("float32", "bfloat16")
ROWS = (1, 2, 3, 4, 7, 8, 16, 33, 64, 100, 127, 128, 129, 256, 500, 1000, 1024, 2048, 4096, 8192)
WIDTHS = (
    64, 100, 128, 512, 768, 1024, 1280, 2048, 4096, 5120, 8192, 12288, 16384, 32000, 50257, 53248,
    65536, 100_000, 128_256, 131_072,
)  # fmt: skip
WORDS = (32, 1000, 32_000, 50_257, 65_536, 128_256, 151_936, 262_144)
POSITIONS = (128, 197, 256, 512, 1000, 1024, 2048, 4096, 8192, 9216, 16384, 32768, 65536)
PIXELS = (7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256, 299, 384, 512, 1024)
CHANNELS = (3, 4, 16, 24, 32, 64, 80, 96, 128, 160, 192, 256, 320, 512, 640, 1024, 1280, 2048)
BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)
YES_OR_NO = (False, True)

Choice = int | str | bool


class Unsuitable(Exception):
    """These choices do not go together, or are too large for a core's memory."""


@dataclass(frozen=True)
class Array:
    """An argument."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        return bool(jnp.issubdtype(jnp.dtype(self.dtype), np.inexact))


@dataclass(frozen=True, kw_only=True)
class Written:
    """A program as text: `body` is that of a function `program` of the arguments, by their names.

    With `wrt`, it is the product of a cotangent with the derivatives by these arguments.
    """

    arguments: Mapping[str, Array]
    body: str
    wrt: tuple[str, ...] = ()
    donated: tuple[str, ...] = ()
    least_bytes: int | None = None
    """What must be read and written; None: every argument once, every result once."""
    read: Mapping[str, float] = field(default_factory=dict)
    """Arguments of which only a share must be read."""
    flops_share: float = 1.0
    """The share of the multiplications that nobody can leave out."""


@dataclass(frozen=True)
class Kind:
    """A row of the table."""

    write: Callable[..., Written]
    choices: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    rows: str = ""
    """The choice that counts rows, of which one more is never faster; empty: there is none."""

    def draw(self, random: Random) -> dict[str, Choice]:
        """One of each choice."""
        return {name: random.choice(options) for name, options in self.choices.items()}


def need(condition: bool) -> None:
    """Unsuitable: the condition does not hold."""
    if not condition:
        raise Unsuitable


def visible(queries: int, keys: int, mask: str, window: int) -> float:
    """The share of the scores that a mask of a known form leaves."""
    if mask == "causal":
        return (queries + 1) / (2 * keys)
    if mask == "window":
        reach = min(window, keys)
        return reach * (2 * keys - reach + 1) / (2 * keys * keys)
    return 1.0
