"""Integers that are known at compile time, against numpy and XLA on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import mlir

from neuronjax.hlo import module as hlo
from neuronjax.hlo.calls import CallGraph, terminator
from neuronjax.hlo.constants import RULES, Constants

TABLE = np.array([[3, -1, 4], [1, -5, 9]], np.int32)
BITS = np.array([[5, 6, 7], [0, 1, 2]], np.uint32)

KNOWN: dict[str, Callable[[], Any]] = {
    "constant": lambda: jnp.array(TABLE),
    "iota": lambda: lax.broadcasted_iota(jnp.int32, (2, 3), 1),
    "arithmetic": lambda: (jnp.arange(6) * 3 - 4) + jnp.arange(6)[::-1],
    "integer division": lambda: lax.div(jnp.array([-7, 7, -8, 9]), jnp.array([2, -2, 3, 4])),
    "remainder": lambda: lax.rem(jnp.array([-7, 7, -8, 9]), jnp.array([2, -2, 3, 4])),
    "negative indices": lambda: jnp.where(jnp.array(TABLE) < 0, jnp.array(TABLE) + 9, TABLE),
    "comparisons": lambda: (jnp.array(TABLE) >= 3) & (jnp.array(TABLE) != 4) | (TABLE[::-1] == 1),
    "not": lambda: (~jnp.array(BITS), ~(jnp.array(BITS) > 3))[0],
    "not of booleans": lambda: ~(jnp.array(BITS) > 3),
    "xor": lambda: jnp.array(BITS) ^ 3,
    "clip": lambda: lax.clamp(0, jnp.array(TABLE), 4),
    "minimum and maximum": lambda: jnp.minimum(jnp.maximum(jnp.array(TABLE), 0), 4),
    "abs and negate": lambda: -abs(jnp.array(TABLE)),
    "shapes": lambda: jnp.concatenate([jnp.array(TABLE).T.reshape(2, 3), TABLE], axis=1)[:, 1::2],
    "broadcast": lambda: lax.broadcast_in_dim(jnp.array(TABLE), (2, 4, 3), (0, 2)),
    "reverse": lambda: lax.rev(jnp.array(TABLE), (0, 1)),
    "conversion": lambda: jnp.array(TABLE).astype(jnp.uint8).astype(jnp.int32),
    "wrapping": lambda: jnp.array([2**31 - 1], jnp.int32) + 1,
    "inside a function": lambda: jax.jit(lambda x: x + 1)(jnp.arange(3)),
    "carried through a loop": lambda: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (0, jnp.array(TABLE))
    )[1],
}


def result(program: Callable[..., Any], *args: Any) -> np.ndarray | None:
    """What is known of the result of a program."""
    lowered = jax.jit(program).trace(*args).lower(lowering_platforms=("neuron",))
    with hlo.context():
        module = hlo.load(mlir.module_to_bytecode(lowered.compiler_ir()))
        graph = CallGraph(module)
        returned = terminator(graph.functions[graph.main]).operands[0]
        return Constants(graph).value(returned, ())


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    found = result(KNOWN[name])
    with jax.default_device(jax.devices("cpu")[0]):
        expected = np.asarray(jax.jit(KNOWN[name])())
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


UNKNOWN: dict[str, Callable[..., Any]] = {
    "an argument": lambda x: x,
    "made of an argument": lambda x: x + jnp.arange(4),
    "floats": lambda x: jnp.arange(4, dtype=jnp.float32),
    "a loop's counter": lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, jnp.arange(4)),
    "division by zero": lambda x: lax.div(jnp.arange(4), jnp.zeros(4, jnp.int32)),
    "too large": lambda x: jnp.arange(1 << 21),
    "types without a numpy twin": lambda x: jnp.arange(4).astype(jnp.int4),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str) -> None:
    assert result(UNKNOWN[name], np.arange(4)) is None


def test_broadcast_may_transpose() -> None:
    text = """
func.func @main() -> tensor<3x2xi32> {
  %0 = stablehlo.constant dense<[[3, -1, 4], [1, -5, 9]]> : tensor<2x3xi32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
  return %1 : tensor<3x2xi32>
}
"""
    with hlo.context():
        module = hlo.load(text.encode())
        graph = CallGraph(module)
        returned = terminator(graph.functions["main"]).operands[0]
        found = Constants(graph).value(returned, ())
    np.testing.assert_array_equal(found, TABLE.T)


def test_every_rule_is_exercised() -> None:
    used = set()
    for program in KNOWN.values():
        lowered = jax.jit(program).trace().lower(lowering_platforms=("neuron",))
        with hlo.context():
            module = hlo.load(mlir.module_to_bytecode(lowered.compiler_ir()))
            used |= {op.name for op, _ in CallGraph(module).operations}
    assert set(RULES) <= used
