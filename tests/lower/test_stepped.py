"""Neighbours in another order, through SBUF row by row: the very elements, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import check, host_operations

RNG = np.random.default_rng(0)


def _bits(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(0, 2**7, shape).astype(dtype)


SPECIAL = RNG.standard_normal((300, 254)).astype(np.float32)
SPECIAL[3, 5], SPECIAL[9], SPECIAL[8, ::2] = np.nan, np.inf, -0.0

COPIES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "backwards": (lambda x: x[:, ::-1], SPECIAL),
    "backwards in all dimensions": (jnp.flip, _bits(13, 40, 97)),
    "backwards in a part": (lambda x: x[5:290, 200:3:-1], SPECIAL),
    "a vector backwards": (lambda x: x[::-1], _bits(40_007)),
    "every second": (lambda x: x[:, ::2], SPECIAL),
    "every third backwards": (lambda x: x[:, 250:1:-3], _bits(600, 254)),
    "twice each": (lambda x: jnp.repeat(x, 2, 1), SPECIAL),
    "single rows five times": (lambda x: jnp.repeat(x, 5, 0).reshape(-1), _bits(70_000)),
    "short words": (lambda x: x[..., ::-1], _bits(3, 120, 131, dtype=np.uint16)),
    "bytes": (lambda x: x[..., ::-1], _bits(5, 100, 131, dtype=np.int8)),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16)[:, ::-1], SPECIAL),
    "truth values": (lambda x: (x > 0)[:, ::-1], SPECIAL),
}


def _rotated(x: jax.Array) -> jax.Array:
    even, odd = x[:, ::2], x[:, 1::2]
    return jnp.stack([even - odd, odd + even], -1).reshape(x.shape)


CHAINS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "every second": (lambda x: jnp.maximum(x[:, ::2], x[:, 1::2]), SPECIAL),
    "backwards beside itself": (lambda x: x + x[:, ::-2].repeat(2, 1), SPECIAL),
    "every fourth of short words": (
        lambda x: jnp.maximum(x.astype(jnp.bfloat16)[:, 3::4], 0),
        _bits(400, 512, dtype=np.float32),
    ),
    "the greatest of every second": (lambda x: x[:, ::2].max(1), SPECIAL[20:]),
    "interleaved": (_rotated, SPECIAL[20:]),
    "three side by side": (
        lambda x: jnp.stack([x, -x, jnp.abs(x)], -1), SPECIAL,
    ),
    "integers side by side": (lambda x: jnp.stack([x, -x], -1), _bits(300, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    program = check(*COPIES[name])
    assert verify(program) == ()
    assert host_operations(program) == []
    assert any(i.mnemonic == "tensor_copy" for _, i in instructions(program))


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    program = check(*CHAINS[name])
    assert verify(program) == ()
    assert host_operations(program) == []
