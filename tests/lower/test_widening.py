"""What memory holds between kernels, and how long its transfers are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Kind, Memory
from neuronjax.program.walk import instructions
from tests.lower.differential import SUM, Tolerance
from tests.lower.test_matmul import drawn, held

BF16 = jnp.bfloat16
ROUNDED = Tolerance(relative=2**-7)  # XLA:CPU keeps what is rounded and widened in FP32
LONG = 8192  # rows of it pass in chunks: the softmax is a kernel of its own


def loss(x: jax.Array, w: jax.Array) -> jax.Array:
    logits = ((x / 64).astype(BF16) @ w.astype(BF16)).astype(jnp.float32)
    return jnp.log(jnp.sum(jnp.exp(logits - jnp.max(logits, -1, keepdims=True)), -1))


def twice(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two kernels read the widened product, along rows and along columns."""
    wide = (x.astype(BF16) @ w.astype(BF16)).astype(jnp.float32)
    return wide.max(0), wide.min(1)


@pytest.mark.parametrize("function", [loss, twice])
def test_narrow_values_lie_in_memory_as_they_are(function: object) -> None:
    x, w = drawn((128, 64)), drawn((64, LONG))
    program = held(function, x, w, tolerance=ROUNDED)  # type: ignore[arg-type]
    large = [
        each
        for each in program.buffers
        if each.memory is Memory.HBM and each.kind is Kind.SCRATCH and each.elements >= 128 * LONG
    ]
    assert large
    assert {each.dtype.name for each in large} == {"bfloat16"}


@pytest.mark.parametrize("axes", [(0,), (0, 1)], ids=str)
def test_sums_over_outer_dimensions_move_neighbours_together(axes: tuple[int, ...]) -> None:
    x = drawn((6, 9, 640))
    program = held(lambda x: (x * x).sum(axes), x, tolerance=SUM)
    copies = [each for _, each in instructions(program) if isinstance(each, DmaCopy)]
    loads = [each.src for each in copies if each.src.buffer.name == "arg0"]
    assert loads
    for each in loads:
        runs = [dim for dim in each.dims if dim.size > 1]
        assert runs[-1].stride == 1
        assert runs[-1].size > 1
