"""Tensors in another order, through the Tensor engine in blocks: the very elements, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import check, host_operations

RNG = np.random.default_rng(0)


def _bits(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(0, 2**16, shape).astype(dtype)


SPECIAL = RNG.standard_normal((600, 300)).astype(np.float32)
SPECIAL[3, 5], SPECIAL[9], SPECIAL[8, ::2] = np.nan, np.inf, -0.0

CASES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "in several tiles": (lambda x: x.T, _bits(1024, 600)),
    "with remainders": (lambda x: x.T, _bits(517, 131)),
    "with a short dimension": (lambda x: x.T, _bits(1300, 33)),
    "of short words": (lambda x: x.transpose(0, 2, 1), _bits(3, 700, 97, dtype=np.uint16)),
    "of bfloat16": (lambda x: x.astype(jnp.bfloat16).T, SPECIAL),
    "of all that FP32 has": (lambda x: x.T, SPECIAL),
    "channels first": (lambda x: x.transpose(0, 3, 1, 2), _bits(2, 33, 40, 65)),
    "dimensions reversed": (lambda x: x.transpose(3, 2, 1, 0), _bits(33, 7, 5, 40)),
    "of a slice": (lambda x: x[5:500, 7:200].T.reshape(-1), SPECIAL),
    "before a chain": (lambda x: jnp.maximum(x.T, 0) + x.T, SPECIAL),
    "beside its own order": (lambda x: x[:300] + x[300:, :300].T, SPECIAL),
    "for many": (lambda x: x.T[None] * jnp.arange(1, 4.0)[:, None, None], SPECIAL),
}


@pytest.mark.parametrize("name", CASES)
def test_turned(name: str) -> None:
    function, argument = CASES[name]
    program = check(function, argument)
    assert verify(program) == ()
    assert host_operations(program) == []
    assert any(i.mnemonic == "tensor_transpose" for _, i in instructions(program))
