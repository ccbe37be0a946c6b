"""The table of docs/nki.md that has the estimated times of the models' kernels, and those of the
compiler's own code for the same functions, on a logical core of one physical core.

JAX_PLATFORMS=neuron python -m tests.documentation.kernel_times
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import neuronjax
from models.layers.attention import dot_product_attention
from models.layers.masks import Visibility
from models.layers.norms import RMSNorm
from neuronjax import nki
from tests.documentation.tables import DOCS, markdown, renewed

nki.install()

from models.kernels.flash_attention import flash_attention  # noqa: E402
from models.kernels.rms_norm import rms_norm  # noqa: E402

PAGE, TABLE = DOCS / "nki.md", "kernel times"
ROWS, WIDTH = 2048, 2048
LENGTH, HEADS, KV_HEADS, HEAD_DIM = 1024, 8, 2, 128


def plain_rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    norm = RMSNorm(WIDTH, eps=1e-6, param_dtype=scale.dtype)
    norm.scale = nnx.data(nnx.Param(scale))
    return norm(x)


def plain_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return dot_product_attention(query, key, value, Visibility())


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """For queries, keys and values; the last argument is the gradient of the result."""

    def pulled(*arguments: jax.Array) -> Any:
        return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

    return pulled


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def cases() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], Sequence[Any]]]:
    """What is computed, the function with the kernel, the one without, and its arguments."""
    yield (
        f"`rms_norm` of [{ROWS}, {WIDTH}]",
        lambda x, scale: rms_norm(x, scale, 1e-6),
        plain_rms_norm,
        (array(ROWS, WIDTH), array(WIDTH)),
    )
    many, few = (array(1, LENGTH, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS))
    size = f"{LENGTH} positions, {HEADS} query heads and {KV_HEADS} key-value heads of {HEAD_DIM}"
    yield f"`flash_attention` of {size}", flash_attention, plain_attention, (many, few, few)
    functions = gradients(flash_attention), gradients(plain_attention)
    yield "the same and its gradients", *functions, (many, few, few, many)


def rows() -> Iterator[Sequence[str]]:
    for what, kernel, plain, arguments in cases():
        times = (
            neuronjax.estimate(function, *arguments, lnc=1).step_ns for function in (kernel, plain)
        )
        yield what, *(f"{time / 1e3:.0f}" for time in times)


if __name__ == "__main__":
    text = markdown(["in BF16", "kernel, µs", "compiler's own code, µs"], rows())
    PAGE.write_text(renewed(PAGE.read_text(), TABLE, text))
