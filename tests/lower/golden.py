"""Small functions and the programs that they become: golden text, reviewed like code.

`python -m tests.lower.golden` writes the files anew; the difference is what a reviewer reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.engine_compiler import lower_program
from neuronjax.hlo import module as hlo
from neuronjax.program import text
from neuronjax.program.program import Target
from tests.lower.differential import CHIP, sent

FOLDER = Path(__file__).parent / "golden"
F32, BF16, I32 = np.dtype(np.float32), np.dtype(jnp.bfloat16), np.dtype(np.int32)


class Golden(NamedTuple):
    """A function, and the shapes and dtypes of its arguments."""

    function: Callable[..., Any]
    arguments: tuple[tuple[tuple[int, ...], np.dtype], ...]
    numerics: str = "ieee"


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(q @ k.T * 0.125) @ v


def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def _adam(p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def _convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(lax.conv(x, w, (2, 2), "SAME"))


def _decode(cache: jax.Array, row: jax.Array, at: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(cache, row, (at, jnp.int32(0)))


CASES: dict[str, Golden] = {
    "add": Golden(lambda x, y: x + y, (((64, 48), F32),) * 2),
    "add_transposed": Golden(lambda x, y: x + y.T, (((64, 48), F32), ((48, 64), F32))),
    "remainders": Golden(lambda x: x * 2, (((1000,), F32),)),
    "gelu": Golden(jax.nn.gelu, (((128, 256), BF16),), "chip"),
    "integers": Golden(lambda x, y: (x * y) // 3 + (x > y), (((16, 16), I32),) * 2),
    "softmax": Golden(lambda x: jax.nn.softmax(x), (((256, 512), F32),)),
    "layer_norm": Golden(_layer_norm, (((128, 64), F32), ((64,), F32), ((64,), F32))),
    "long_rows": Golden(lambda x: x.max(-1), (((4, 100_000), F32),)),
    "column_sums": Golden(lambda x: x.sum(0), (((512, 64), F32),)),
    "adam": Golden(_adam, (((128, 256), F32),) * 4),
    "matmul": Golden(lambda x, w: x @ w, (((256, 384), BF16), ((384, 1024), BF16))),
    "matmul_epilogue": Golden(
        lambda x, w, b, r: jnp.tanh(x @ w + b) + r,
        (((130, 64), F32), ((64, 96), F32), ((96,), F32), ((130, 96), F32)),
    ),
    "decode_product": Golden(lambda x, w: x @ w, (((1, 256), BF16), ((256, 512), BF16))),
    "attention": Golden(_attention, (((256, 64), BF16), ((512, 64), BF16), ((512, 64), BF16))),
    "convolution": Golden(_convolution, (((2, 16, 9, 9), F32), ((32, 16, 3, 3), F32))),
    "embedding": Golden(lambda t, i: t[i], (((1000, 64), BF16), ((24,), I32))),
    "cache_update": Golden(_decode, (((128, 64), BF16), ((1, 64), BF16), ((), I32))),
    "concatenation": Golden(
        lambda x, y: jnp.concatenate([x, y], 1), (((8, 4), F32), ((8, 6), F32))
    ),
    "scan": Golden(
        lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(32), x), (((10, 32), F32),)
    ),
    "cond": Golden(
        lambda p, x: lax.cond(p > 0, lambda x: x + 1, lambda x: x * 2, x),
        (((), I32), ((32,), F32)),
    ),
}
"""Name -> function."""


def lowered(name: str) -> str:
    """The program of a case, as text."""
    case = CASES[name]
    shapes = [jax.ShapeDtypeStruct(*each) for each in case.arguments]
    donated = {"cache_update": 0}.get(name)
    code = sent(jax.jit(case.function, donate_argnums=donated).trace(*shapes), case.numerics)
    with hlo.context():
        code = str(hlo.load(code)).encode()  # lines of this text instead of those of this file
    return text.format(lower_program(code, Target(CHIP), 1))


def main() -> None:
    """Writes all files."""
    FOLDER.mkdir(exist_ok=True)
    for name in CASES:
        (FOLDER / f"{name}.txt").write_text(lowered(name))


if __name__ == "__main__":
    main()
