"""Narrow floats with the chip's numerics: what the engines know natively is one instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lower.differential import Tolerance, check
from tests.program.counts import count_instructions

NATIVE = ("bfloat16", "float16", "float8_e4m3", "float8_e5m2")
ROUNDED_BETWEEN = Tolerance(ulps=1, roundings=2)
"""XLA:CPU rounds what engines do in one instruction."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: x + y,
    "constant": lambda x, y: x * 3 + y,
    "product": lambda x, y: x @ y,
    "function": lambda x, y: jnp.tanh(x) - y,
    "widening": lambda x, y: (x.astype(jnp.float32) * 2 + y.astype(jnp.float32)).astype(x.dtype),
    "row sums": lambda x, y: (x + y).sum(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_native_type_takes_the_same_instructions(name: str) -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 128, 128)).astype(np.float32)
    counts = []
    for dtype in NATIVE:
        x, y = (jnp.asarray(each).astype(dtype) for each in numbers)
        program = check(FUNCTIONS[name], x, y, tolerance=ROUNDED_BETWEEN, numerics="chip")
        counts.append(count_instructions(program))
    assert counts == [counts[0]] * len(NATIVE)


def test_a_rounding_to_fp16_is_kept_where_it_is_widened_again() -> None:
    """XLA:CPU would leave it out."""
    x = np.array([1 + 2**-12, 2049.0, 1e-8, 7e4, -np.inf, np.nan], np.float32)
    program = check(lambda x: x.astype(jnp.float16).astype(jnp.float32) * 2, x, numerics="chip")
    rounded = jax.jit(lambda x: x.astype(jnp.float16).astype(jnp.float32) * 2)
    device = jax.devices("neuron")[0]
    assert count_instructions(program)["tensor_scalar"] <= 2
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float16).astype(np.float32) * 2
    np.testing.assert_array_equal(rounded(jax.device_put(x, device)), wanted)


_TYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e5m2)
_OPERATIONS: tuple[Callable[..., Any], ...] = (
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, jnp.maximum, jnp.minimum,
)  # fmt: skip
_Step = tuple[int, int, int]
_STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 7)), min_size=3, max_size=8
)


def _chain(steps: list[_Step], *inputs: jax.Array) -> list[jax.Array]:
    """All values of a chain: each step casts the last value, or combines it with an older one."""
    values = list(inputs)
    for operation, dtype, other in steps:
        last = values[-1].astype(_TYPES[dtype])
        if operation < len(_OPERATIONS):
            older = values[other % len(values)].astype(_TYPES[dtype])
            last = _OPERATIONS[operation](older, last)
        values.append(last)
    return values[len(inputs) :]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(steps=_STEPS, dtypes=st.tuples(*[st.sampled_from(_TYPES)] * 3))
def test_fused_chains_make_every_rounding(steps: list[_Step], dtypes: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(130, 3)).astype(np.float32).astype(dtype) for dtype in dtypes]
    check(lambda *given: _chain(steps, *given), *inputs, excess_precision=False)
