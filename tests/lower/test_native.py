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
from neuronjax.program.walk import instructions
from tests.lower.differential import (
    EXACT,
    Tolerance,
    check,
    completed,
    emulated,
    lowered,
    on_cpu,
    sent,
)
from tests.lower.ranks import RANKS, per_core
from tests.lower.test_matmul import drawn, held
from tests.program.counts import count_instructions

CLOSE = Tolerance(ulps=8, relative=1e-5)
ROUNDED_BETWEEN = Tolerance(ulps=8, relative=1e-5, roundings=4)
"""XLA:CPU rounds each of the operations that are one here."""
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


WHOLE = tuple(each for each in Activation if each.name.startswith(("GELU", "SIGMOID")))


def activations(program: Program, *functions: Activation) -> int:
    """Instructions that apply one of these functions."""
    return sum(
        isinstance(each, Activate) and each.op in functions for _, each in instructions(program)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
def test_gelu_is_one_activation(dtype: str, approximate: bool) -> None:
    """Its erfc reaches a plugin as an expansion."""
    program = held(
        lambda x: jax.nn.gelu(x.astype(dtype), approximate=approximate),
        drawn((64, 48)),
        tolerance=ROUNDED_BETWEEN,
        numerics="chip",
    )
    function = Activation.GELU_APPRX_TANH if approximate else Activation.GELU
    assert activations(program, *Activation) == activations(program, function) == 1


def exact_gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def gradient(x: jax.Array, y: jax.Array, scale: float = 1.0) -> jax.Array:
    """The gradient of GELU with respect to `x`, times `y`."""
    return jax.vjp(lambda x: scale * exact_gelu(x), x)[1](y)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1.0, -3.0])
def test_the_gradient_of_gelu_is_one_activation(dtype: str, scale: float) -> None:
    program = held(
        lambda x, y: gradient(x.astype(dtype), y.astype(dtype), scale),
        drawn((64, 48)),
        drawn((64, 48)),
        tolerance=ROUNDED_BETWEEN,
        numerics="chip",
    )
    assert activations(program, *Activation) == activations(program, Activation.GELU_DX) == 1


TIES = (1 << 16) >> 13
"""Of all FP16 numbers, those where a digit of FP32 in 2^13 lies at the tie between two."""
NARROW = [
    (jax.nn.sigmoid, Activation.SIGMOID, BF16, 0),
    (jax.nn.silu, Activation.SIGMOID, BF16, 0),
    (jax.nn.gelu, Activation.GELU_APPRX_TANH, BF16, 0),
    (exact_gelu, Activation.GELU, BF16, 0),
    (gradient, Activation.GELU_DX, BF16, 0),
    (exact_gelu, Activation.GELU, jnp.float16, TIES),
    (gradient, Activation.GELU_DX, jnp.float16, TIES),
]
"""Function, its activation, a type, and for how many numbers a last digit of FP32 may decide."""


@pytest.mark.parametrize(
    ("function", "activation", "dtype", "ties"),
    NARROW,
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_activations_of_narrow_numbers_are_those_of_the_host(
    function: Any, activation: Activation, dtype: Any, ties: int
) -> None:
    """In the chip's numerics, for every number of 16 bits whose result is no subnormal."""
    with np.errstate(invalid="ignore"):
        numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    x = np.where(np.abs(numbers) < 9, numbers, 1).astype(dtype).reshape(128, 512)
    arguments = [x, drawn(x.shape).astype(dtype)][: 1 + (function is gradient)]
    code = sent(jax.jit(function).trace(*arguments), "chip")
    program = completed(lowered(code))
    (got,) = emulated(program, code, [arguments])[0]
    (want,) = on_cpu(code, arguments, excess_precision=False)
    assert activations(program, activation) == activations(program, *WHOLE) > 0
    is_normal = np.abs(want.astype(np.float32)) > float(jnp.finfo(dtype).tiny)
    differ = (got != want) & is_normal
    assert differ.sum() <= ties, (x[differ][:5], got[differ][:5], want[differ][:5])


ROUNDED: dict[str, Callable[..., jax.Array]] = {
    "gelu": exact_gelu,
    "gradient": lambda x: gradient(x, x),
}


@pytest.mark.parametrize("dtype", [BF16, jnp.float16])
@pytest.mark.parametrize("name", ROUNDED)
def test_every_rounding_that_a_program_asks_for_is_made(name: str, dtype: Any) -> None:
    """Where arithmetic is plain XLA's, engines have no activation for it."""
    x = drawn((64, 48)).astype(dtype)
    check(ROUNDED[name], x, tolerance=EXACT, excess_precision=False)


NOT_QUITE_GELU: dict[str, Callable[..., jax.Array]] = {
    "another factor": lambda x, y: 0.6 * x * jax.lax.erfc(-x * 0.5**0.5),
    "another argument": lambda x, y: 0.5 * x * jax.lax.erfc(-y * 0.5**0.5),
    "another slope": lambda x, y: 0.5 * x * jax.lax.erfc(-x * 0.8),
    "another cube": lambda x, y: 0.5 * x * (1 + jnp.tanh(0.7978846 * (x + 0.05 * x**3))),
    "another density": lambda x, y: (
        0.5 * y * jax.lax.erfc(-x * 0.5**0.5) + y * x * 0.5 * jnp.exp(-0.5 * x * x)
    ),
    "another gradient": lambda x, y: (
        0.5 * y * jax.lax.erfc(-x * 0.5**0.5) + x * x * 0.3989423 * jnp.exp(-0.5 * x * x)
    ),
}


@pytest.mark.parametrize("name", NOT_QUITE_GELU)
def test_what_is_not_quite_gelu_stays_as_it_is(name: str) -> None:
    program = held(NOT_QUITE_GELU[name], drawn((64, 48)), drawn((64, 48)), tolerance=CLOSE)
    gelus = [each for each in Activation if each.name.startswith("GELU")]
    assert activations(program, *gelus) == 0


@pytest.mark.parametrize("policy", [Policy(), Policy(numerics="chip")], ids=["ieee", "chip"])
def test_gelu_of_eight_cores(neuron_devices: list[jax.Device], policy: Policy) -> None:
    """The partitioner has written the expansion in its own way."""
    rows = NamedSharding(Mesh(np.array(neuron_devices), ("rows",)), PartitionSpec("rows"))
    x = jax.device_put(drawn((64, 48)), rows)
    gelu = jax.jit(lambda x: jax.nn.gelu(x, approximate=False))
    program = lowered(per_core(gelu.lower(x), HostClient(8), policy), RANKS)
    assert activations(program, Activation.GELU) == 1


def test_products_of_widened_numbers_read_narrow_ones() -> None:
    x, y = drawn((64, 128)), drawn((128, 96))
    program = held(widened, x, y, tolerance=CLOSE)
    assert count_instructions(program)["nc_matmul"] == 1


def test_nan_needs_no_choice() -> None:
    x = np.array([1.0, np.nan, -np.inf, 0.0], np.float32)
    program = held(lambda x: jnp.where(x == x, x, jnp.nan) + 1, x)
    counts = count_instructions(program)
    assert not {"tensor_copy_predicated", "select_reduce"} & counts.keys()
