"""Rows that all partitions need: read once, spread or added by the Tensor engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Memory
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from tests.lower.differential import (
    SUM,
    assert_close,
    emulated,
    lowered,
    lowered_function,
    on_cpu,
)

RNG = np.random.default_rng(0)
CHIPS = ("trainium1", "trainium2", "trainium3")


class Case(NamedTuple):
    function: Callable[..., jax.Array]
    arguments: tuple[np.ndarray, ...]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def whole(*shape: int) -> np.ndarray:
    """Numbers whose sums are exact."""
    return RNG.integers(-3, 4, shape).astype(np.float32)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def narrow_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    bias = bias.astype(jnp.bfloat16).astype(jnp.float32)
    return (x + bias) * bias


CASES = {
    "norm of short rows": Case(layer_norm, (floats(256, 200), floats(200), floats(200))),
    "norm of long rows": Case(layer_norm, (floats(256, 700), floats(700), floats(700))),
    "bias": Case(lambda x, b: jnp.tanh(x) + b, (floats(800, 1500), floats(1500))),
    "bias of other types": Case(narrow_bias, (floats(1700, 640), floats(640))),
    "scale by itself": Case(lambda x, b: x * b + b * b, (floats(1700, 640), floats(640))),
    "product of few rows": Case(
        lambda x, w, b: x @ w + b, (floats(130, 64), floats(64, 600), floats(600))
    ),
    "product of few rows, narrow result": Case(
        lambda x, w, b: (x @ w + b).astype(jnp.bfloat16).astype(jnp.float32),
        (whole(130, 64), whole(64, 600), whole(600)),
    ),
    "product of many rows": Case(
        lambda x, w, b: jax.nn.relu(x @ w + b), (floats(600, 64), floats(64, 600), floats(600))
    ),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, chip: str) -> None:
    case = CASES[name]
    _, code = lowered_function(case.function, *case.arguments)
    program = lowered(code, chip=chip)
    assert verify(program) == ()
    ((got,),) = emulated(program, code, [list(case.arguments)])
    (want,) = on_cpu(code, list(case.arguments))
    assert_close(got, want, SUM)


@pytest.mark.parametrize("name", [name for name in CASES if "many" not in name])
def test_rows_are_read_once(name: str) -> None:
    case = CASES[name]
    program, _ = lowered_function(case.function, *case.arguments)
    loads = [each for _, each in instructions(program) if isinstance(each, DmaCopy)]
    from_hbm = [each.src for each in loads if each.src.memory is Memory.HBM]
    assert not any(dim.stride == 0 and dim.size > 1 for src in from_hbm for dim in src.dims)
