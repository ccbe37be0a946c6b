"""Programs at the sizes of real models have a plan that fits, and one that suits the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import neuronjax


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """[1, t, 1, d], as in the decoder of a variational autoencoder of images."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def convolution(stride: int = 1, groups: int = 1) -> Callable[..., jax.Array]:
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    return convolve


def milliseconds(function: Callable[..., Any], *arguments: Any, target: str) -> float:
    estimate = neuronjax.estimate(function, *arguments, target=target)
    return (estimate.step_ns - estimate.launch_ns) / 1e6


WIDE = [shape(1, 4096, 1, 512, dtype=jnp.float32)] * 3
LONG = [shape(1, 9216, 1, 512)] * 3
FITTING: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "rows fit without keys": (attention, WIDE, "inf2.xlarge"),
    "rows fit in parts": (attention, LONG, "trn2.3xlarge"),
    "depthwise, rows of weights in PSUM": (
        convolution(groups=320), [shape(2, 14, 14, 320), shape(3, 3, 1, 320)], "trn1.2xlarge",
    ),
    "first layer of a network": (
        convolution(), [shape(1, 1024, 1024, 3), shape(7, 7, 3, 64)], "trn3-gen1-ultraserver",
    ),
    "large windows": (
        convolution(),
        [shape(64, 7, 7, 512, dtype=jnp.float32), shape(7, 7, 512, 1280, dtype=jnp.float32)],
        "inf2.xlarge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTING)
def test_there_is_a_plan_that_fits(name: str) -> None:
    function, arguments, target = FITTING[name]
    assert milliseconds(function, *arguments, target=target) > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["inf2.xlarge", "trn2.3xlarge"])
def test_rows_of_every_length_cost_as_much_for_each_score(target: str) -> None:
    half, whole = (
        milliseconds(attention, *[shape(1, keys, 1, 512)] * 3, target=target)
        for keys in (16384, 32768)
    )
    assert half * 4 <= whole * 1.15


def test_a_gradient_with_a_stride_is_no_slower_on_a_newer_machine() -> None:
    x, w, g = shape(1, 512, 512, 256), shape(3, 3, 256, 160), shape(1, 256, 256, 160)

    def gradient(x: jax.Array, w: jax.Array, g: jax.Array) -> jax.Array:
        return jax.vjp(lambda w: convolution(stride=2)(x, w), w)[1](g)[0]

    older, newer = (
        milliseconds(gradient, x, w, g, target=target)
        for target in ("trn1.2xlarge", "trn2.3xlarge")
    )
    assert newer < older
