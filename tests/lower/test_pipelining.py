"""Loops whose iterations overlap compute the same, in less time."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import neuronjax
from neuronjax.lower.memory.lifetimes import carried
from neuronjax.lower.schedule.pipelining import pipelined
from neuronjax.program.program import Kernel, Loop, Program
from tests.lower.nests import loops
from tests.lower.unrolled import results


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(loops("abcd", trips=(2, 4), most=6), st.data())
def test_random_loops_leave_the_same_in_hbm(program: Program, data: st.DataObject) -> None:
    """Wherever they are cut."""
    (kernel,) = program.body
    assert isinstance(kernel, Kernel)
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    lasting = carried(loop, kernel.buffers)
    passing = {buffer.name: buffer for buffer in kernel.buffers if buffer not in lasting}
    parts = pipelined(loop, data.draw(st.integers(1, len(loop.body) - 1)), passing)
    body = (*parts.prologue, parts.loop, *parts.epilogue)
    buffers = (*kernel.buffers, *parts.tiles.values())
    changed = dataclasses.replace(kernel, body=body, buffers=buffers)
    assert results(dataclasses.replace(program, body=(changed,))) == results(program)


@pytest.mark.parametrize("keys", [2048, 4096])
def test_attention_keeps_an_engine_busy(keys: int) -> None:
    """Scores of the next queries are made while weights of these are multiplied with the values."""
    attention = jax.nn.dot_product_attention
    shape = jax.ShapeDtypeStruct((1, keys, 4, 64), jnp.bfloat16)
    estimate = neuronjax.estimate(attention, shape, shape, shape, target="trn2.3xlarge")
    time = estimate.step_ns - estimate.launch_ns
    assert time < 1.6 * max(estimate.busy_ns[name] for name in ("tensor", "vector", "scalar"))
