"""What engines do by themselves, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from neuronjax.host.client import HostClient
from neuronjax.legalize.policy import Policy
from neuronjax.program.operators import Activation
from neuronjax.program.program import Program
from neuronjax.program.scalar_engine import Activate
from neuronjax.program.walk import count_instructions, instructions
from tests.lower.differential import Tolerance, lowered
from tests.lower.ranks import RANKS, per_core
from tests.lower.test_matmul import drawn, held

CLOSE = Tolerance(ulps=8, relative=1e-5)
BF16 = jnp.bfloat16


def widened(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.astype(BF16).astype(jnp.float32) @ y.astype(BF16).astype(jnp.float32)


def pooled(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )


CASES: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], str]] = [
    ("sum of squares", lambda x: x / jnp.sqrt((x * x).mean()), ((1, 4096),), "nc_matmul"),
    ("logistic", lambda x: 1 / (1 + jnp.exp(-x)), ((64, 48),), "activation"),
    ("pooling", pooled, ((1, 14, 14, 32),), "tensor_tensor"),
    ("rms norm", lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)),
     ((200, 300),), "activation_reduce"),
    ("sum of rows", lambda x: (x * 2).sum((0, 1)), ((3, 100, 256),), "nc_matmul"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_against_the_host(case: Any) -> None:
    _, function, shapes, mnemonic = case
    arguments = [drawn(shape) for shape in shapes]
    program = held(function, *arguments, tolerance=CLOSE)
    assert count_instructions(program)[mnemonic] > 0


def gelus(program: Program) -> int:
    """Instructions that are a whole GELU."""
    return sum(
        isinstance(each, Activate) and each.op is Activation.GELU
        for _, each in instructions(program)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gelu_is_one_activation(dtype: str) -> None:
    """Its erfc reaches a plugin as an expansion."""
    program = held(
        lambda x: jax.nn.gelu(x.astype(dtype), approximate=False), drawn((64, 48)), tolerance=CLOSE
    )
    assert gelus(program) == 1


@pytest.mark.parametrize("policy", [Policy(), Policy(numerics="chip")], ids=["ieee", "chip"])
def test_gelu_of_eight_cores(neuron_devices: list[jax.Device], policy: Policy) -> None:
    """The partitioner has written the expansion in its own way."""
    rows = NamedSharding(Mesh(np.array(neuron_devices), ("rows",)), PartitionSpec("rows"))
    x = jax.device_put(drawn((64, 48)), rows)
    gelu = jax.jit(lambda x: jax.nn.gelu(x, approximate=False))
    assert gelus(lowered(per_core(gelu.lower(x), HostClient(8), policy), RANKS)) == 1


def test_products_of_widened_numbers_read_narrow_ones() -> None:
    x, y = drawn((64, 128)), drawn((128, 96))
    program = held(widened, x, y, tolerance=CLOSE)
    assert count_instructions(program)["nc_matmul"] == 1


def test_nan_needs_no_choice() -> None:
    x = np.array([1.0, np.nan, -np.inf, 0.0], np.float32)
    program = held(lambda x: jnp.where(x == x, x, jnp.nan) + 1, x)
    counts = count_instructions(program)
    assert not {"tensor_copy_predicated", "select_reduce"} & counts.keys()
