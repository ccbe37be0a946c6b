"""The engine that starts loads of weights never waits for what a kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaInstruction
from neuronjax.program.operand import Access
from neuronjax.program.program import Kernel, Program
from neuronjax.program.verify import verify
from neuronjax.program.walk import kernels, leaves
from tests.lower.differential import completed, lowered, sent

WIDTH = 512


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-5)).astype(x.dtype) * scale


def layers(x: jax.Array, weights: Any, scale: jax.Array) -> jax.Array:
    """Sums of squares are spread over partitions by copies on the chip, which wait for them."""
    for up, down in weights:
        x = x + jnp.dot(jax.nn.silu(jnp.dot(norm(x, scale), up)), down)
    return x


@pytest.fixture(scope="module", params=["trainium1", "trainium2"])
def program(request: pytest.FixtureRequest) -> Program:
    pairs = [(shape(WIDTH, 2 * WIDTH), shape(2 * WIDTH, WIDTH))] * 2
    code = sent(jax.jit(layers).trace(shape(1, WIDTH), pairs, shape(WIDTH)), numerics="chip")
    written = lowered(code, chip=request.param)
    return completed(written, verify_passes=False)


def test_loads_of_weights_stand_behind_nothing_that_a_kernel_computes(program: Program) -> None:
    assert verify(program) == ()
    for _, kernel in kernels(program):
        made = set(_made(kernel))
        for leaf in leaves(kernel.body):
            if leaf.engine is Engine.SYNC and isinstance(leaf, DmaInstruction):
                read = {each.buffer.name for each in leaf.reads() if isinstance(each, Access)}
                assert made.isdisjoint(read), kernel.name


def _made(kernel: Kernel) -> Iterator[str]:
    """Names of the buffers that a kernel writes."""
    for leaf in leaves(kernel.body):
        yield from (each.buffer.name for each in leaf.writes() if isinstance(each, Access))
