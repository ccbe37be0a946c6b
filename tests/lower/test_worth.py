"""Operations that touch the same bytes take about the same time, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax

ROWS = ((1024, 512), "float32")
NARROW = ((1024, 512), "bfloat16")
CHOSEN = ((1024,), "int32")


def _step(function: Callable[..., Any], *arguments: Any) -> float:
    shapes = [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in arguments]
    found = neuronjax.estimate(function, *shapes, target="trn2.3xlarge", lnc=1)
    return found.step_ns - found.launch_ns


def _pick(x: jax.Array, i: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, i[:, None], 1).sum()


def _depthwise(x: jax.Array, k: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x[None], k[:, :, None], (1, 1), "SAME", feature_group_count=x.shape[-1],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )[0]  # fmt: skip


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    # what is looked at, what it may take twice the time of, the arguments of both
    "products of rows": (
        lambda x, y: jnp.einsum("bk,bk->b", x, y), lambda x, y: (x * y).sum(1), (ROWS, ROWS),
    ),
    "products of narrow rows": (
        lambda x, y: jnp.einsum("bk,bk->b", x, y), lambda x, y: (x * y).sum(1), (NARROW, NARROW),
    ),
    "product of columns": (
        lambda x, y: jnp.einsum("kb,kb->b", x, y), lambda x, y: (x * y).sum(0), (ROWS, ROWS),
    ),
    "product of vectors": (jnp.vdot, lambda x, y: (x * y).sum(), (ROWS, ROWS)),
    "norm": (jnp.linalg.norm, jnp.sum, (ROWS,)),
    "largest of all": (jnp.max, jnp.sum, (ROWS,)),
    "gradient of a choice": (jax.grad(_pick), lambda x, i: x + i[:, None], (ROWS, CHOSEN)),
    "setting a number of each row": (
        lambda x, i: x.at[jnp.arange(1024), i].set(0.0), lambda x, i: x + i[:, None],
        (ROWS, CHOSEN),
    ),
    "convolution of each channel": (
        lambda x, k: _depthwise(x, k),
        lambda x, k: sum(jnp.roll(x, i, 0) * k[i % 3, i // 3] for i in range(9)),
        (((64, 64, 128), "float32"), ((3, 3, 128), "float32")),
    ),
    "patches of images, channels first": (
        lambda x, k: jax.lax.conv_general_dilated(x, k, (16, 16), "VALID"),
        lambda x, k: (x + 1, x.reshape(-1, 768) @ k.reshape(-1, 768).T),
        (((8, 3, 224, 224), "bfloat16"), ((768, 3, 16, 16), "bfloat16")),
    ),
    "a token's heads with shared keys": (
        lambda q, k: jnp.einsum("hd,hkd->hk", q, jnp.repeat(k, 8, 0)),
        lambda q, k: jnp.einsum("gqd,gkd->gqk", q.reshape(4, 8, 128), k),
        (((32, 128), "bfloat16"), ((4, 2048, 128), "bfloat16")),
    ),
    "sums of windows": (
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 3, 1), (1, 1, 1), "SAME"),
        lambda x: sum(jnp.roll(x, i, 0) for i in range(9)),
        (((64, 64, 128), "float32"),),
    ),
    "sums of large windows": (
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (7, 7, 1), (1, 1, 1), "SAME"),
        lambda x: sum(jnp.roll(x, i, 0) for i in range(14)),
        (((64, 64, 128), "float32"),),
    ),
    "rows backwards": (lambda x: x[:, ::-1], lambda x: x + 1, (ROWS,)),
    "numbers twice": (lambda x: jnp.repeat(x, 2, 1), lambda x: jnp.tile(x, (1, 2)) + 1, (NARROW,)),
    "every second number": (lambda x: x[:, ::2] * 2, lambda x: x * 2, (NARROW,)),
    "numbers side by side": (
        lambda x, y: jnp.stack([x, y], -1), lambda x, y: jnp.concatenate([x, y], -1) * 2,
        (NARROW, NARROW),
    ),
    "rows of a turned table": (
        lambda x, i: jnp.take(x.T, i, axis=0),
        lambda x, i: (x.T + 1, jnp.take(x, i, axis=0)),
        (((1024, 1024), "float32"), ((4096,), "int32")),
    ),
    "eight greatest": (
        lambda x: jax.lax.top_k(x, 8), lambda x: [(x * i).max(1) for i in range(8)], (ROWS,),
    ),
    "fifty greatest of long rows": (
        lambda x: jax.lax.top_k(x, 50), lambda x: [(x * i).max(1) for i in range(50)],
        (((1, 128_256), "float32"),),
    ),
    "biases of distances": (
        lambda t, i: t[i.reshape(256, 256)].transpose(2, 0, 1),
        lambda t, i: t[:12, :1] * (i + i[::-1]),
        (((257, 12), "float32"), ((65_536,), "int32")),
    ),
    "a turned tensor": (lambda x: x.T, lambda x: x + 1, (((1000, 1100), "float32"),)),
    "channels first": (
        lambda x: jax.nn.relu(x.transpose(0, 3, 1, 2)), lambda x: (x + 1, x + 2),
        (((4, 56, 56, 64), "bfloat16"),),
    ),
    "a turned tensor added": (
        lambda x, y: x + y.T, lambda x, y: (x + 1, y + 1),
        (((1024, 1024), "float32"), ((1024, 1024), "float32")),
    ),
    "counting": (
        lambda i: jnp.bincount(i, length=64),
        lambda i: (i[None] == jnp.arange(64)[:, None]).sum(1),
        (CHOSEN,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_time(name: str) -> None:
    function, other, arguments = PAIRS[name]
    assert _step(function, *arguments) < 2 * _step(other, *arguments)


@pytest.mark.parametrize("target", ["inf2.xlarge", "trn1.2xlarge", "trn2.3xlarge"])
@pytest.mark.parametrize("channels", [192, 1024])
def test_many_taps_fit_every_chip(target: str, channels: int) -> None:
    """Their weights are rows that all partitions read."""
    shapes = [((14, 14, channels), "float32"), ((7, 7, channels), "float32")]
    arguments = [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in shapes]
    found = neuronjax.estimate(_depthwise, *arguments, target=target)
    assert found.fits
