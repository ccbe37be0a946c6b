"""Every fault that is put into a compiled program is reported before its values are believed."""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder
from neuronjax.engine_compiler import lower_program
from neuronjax.errors import NeuronError
from neuronjax.program.program import Program, Target
from neuronjax.program.verify import verify
from tests.lower.differential import CHIP, emulated, sent
from tests.lower.mutations import FAULTS

SEEDS = range(8)
RNG = np.random.default_rng(0)
ALL_REDUCE = """
module @sum {
  func.func public @main(%x: tensor<8x64xf32>, %w: tensor<64x32xf32>) -> tensor<8x32xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x64xf32>, tensor<64x32xf32>) -> tensor<8x32xf32>
    %1 = "stablehlo.all_reduce"(%0)
      <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<8x32xf32>) -> tensor<8x32xf32>
    return %1 : tensor<8x32xf32>
  }
}
"""


def network(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    """Products with loops over tiles, and a row reduction."""
    hidden = jax.nn.gelu(x @ w)
    return jax.nn.softmax(hidden @ v, axis=-1)


Built = tuple[Program, bytes, list[list[np.ndarray]]]


@functools.cache
def on_one_core() -> Built:
    shapes = ((256, 256), (256, 1024), (1024, 64))
    arrays = [0.1 * RNG.standard_normal(shape, np.float32) for shape in shapes]
    code = sent(jax.jit(network).trace(*arrays))
    return lower_program(code, Target(CHIP), 1), code, [arrays]


@functools.cache
def on_four_cores() -> Built:
    code = ALL_REDUCE.encode()
    arrays = [np.asarray(jnp.ones((8, 64))), np.asarray(jnp.ones((64, 32)))]
    return lower_program(code, Target(CHIP), 4), code, [arrays] * 4


@pytest.mark.parametrize("build", [on_one_core, on_four_cores])
def test_without_faults_nothing_is_reported(build: functools._lru_cache_wrapper[Built]) -> None:
    program, code, arguments = build()
    assert verify(program) == ()
    emulated(program, code, arguments, order=DataflowOrder(0, adversarial=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_reported(name: str, seed: int) -> None:
    program, code, arguments = on_four_cores() if "rank" in name else on_one_core()
    broken = FAULTS[name](program, random.Random(f"{name}/{seed}"))
    assert broken != program
    if verify(broken):
        return
    with pytest.raises(NeuronError):
        emulated(broken, code, arguments, order=DataflowOrder(0, adversarial=True))
