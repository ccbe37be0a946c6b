"""Programs that the compiler takes: no rule may say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from neuronjax.legalize.policy import Policy
from neuronjax.legalize.rules.rule import Cores, Severity
from neuronjax.machine.machine import Machine
from tests.legalize import programs
from tests.legalize.finding import bytecode, found_in, partitioned
from tests.legalize.programs import NHWC, Case


def branches_by_replica() -> str:
    """What XLA's partitioner makes of a host callback: one replica alone makes it."""
    return """
func.func @main(%arg0: tensor<f32>) -> tensor<f32> {
  %id = stablehlo.replica_id : tensor<ui32>
  %first = stablehlo.constant dense<0> : tensor<ui32>
  %0 = stablehlo.compare EQ, %id, %first : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %1 = "stablehlo.if"(%0) ({ stablehlo.return %arg0 : tensor<f32> },
      { stablehlo.return %arg0 : tensor<f32> }) : (tensor<i1>) -> tensor<f32>
  return %1 : tensor<f32>
}
"""


def rbg_key(x: jax.Array) -> jax.Array:
    """A key that is not known at compile time."""
    return programs.key_of(jnp.arange(4, dtype=jnp.uint32) + x[0, 0].astype(jnp.uint32))


LEGAL: dict[str, Callable[..., Any] | str] = {
    "matmul and softmax": lambda x: jax.nn.softmax(x @ x.T),
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1],
    "reversed scan and its gradient": lambda x: jax.grad(
        lambda y: lax.scan(lambda c, r: (jnp.tanh(c + r), c), y[0], y, reverse=True)[1].sum()
    )(x),
    "fori_loop": lambda x: lax.fori_loop(2, 10, lambda i, y: y * i, x),
    "while_loop that counts": lambda x: lax.while_loop(
        lambda c: c[0] < 10, lambda c: (c[0] + 2, c[1] * 2), (0, x)
    )[1],
    "while_loop that counts down": lambda x: lax.while_loop(
        lambda c: c[1] != 0, lambda c: (c[0] * 2, c[1] - 1), (x, 8)
    )[0],
    "while_loop to a bound it carries": lambda x: lax.while_loop(
        lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] * 2), (0, 3, x)
    )[2],
    "gradient that keeps some values": jax.grad(
        jax.checkpoint(
            lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "kept")).sum(),
            policy=jax.checkpoint_policies.save_only_these_names("kept"),
        )
    ),
    "top_k": lambda x: lax.top_k(x, 2),
    "argmax and argmin": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "gather": lambda x: x[jnp.array([0, -8])],
    "gather by an iota": lambda x: x[jnp.arange(8)],
    "gather by what is computed": lambda x: x[x[0].astype(int)],
    "scatter": lambda x: x.at[jnp.arange(8), jnp.arange(8)].add(1.0),
    "scatter of integers that overwrites": lambda x: x.astype(int).at[jnp.array([1])].set(2),
    "gradient of an embedding": lambda x: jax.grad(lambda t: t[jnp.array([1, 1])].sum())(x),
    "cumulative sum": lambda x: jnp.cumsum(x, 1),
    "max pooling and its gradient": jax.grad(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()
    ),
    "strided convolution and its gradients": jax.grad(
        lambda x: lax.conv_general_dilated(
            x[None, :, :, None],
            x[:3, :3, None, None],
            (2, 2),
            "SAME",
            dimension_numbers=NHWC,
        ).sum()
    ),
    "random numbers of rbg": lambda x: (
        jax.random.normal(jax.random.split(rbg_key(x))[0], (4,)),
        jax.random.categorical(jax.random.fold_in(rbg_key(x), 3), x),
    ),
    "many keys of rbg": lambda x: jax.random.split(rbg_key(x), (3, 3)),
    "remainder": lambda x: x.astype(jnp.uint32) % 7,
    "erf, remat, custom derivative": lambda x: jax.grad(
        lambda y: jax.checkpoint(jax.scipy.special.erf)(jax.nn.silu(y)).sum()
    )(x),
    "FP8 that the chip has": lambda x: (x.astype(jnp.float8_e4m3), x.astype(jnp.float8_e5m2)),
    "QuantizeMX": programs.quantize(),
    "QuantizeMX along the dimension before the last": programs.quantize(
        programs.mx_config(dim=0, block_size=32, scale_method="EMAX"),
        results="(tensor<1x64xui32>, tensor<1x64xui8>)",
    ),
    "ScaledMatmul": programs.scaled_matmul(programs.BATCHED),
    "ScaledMatmul without configuration": programs.scaled_matmul(),
    "a branch for one replica": branches_by_replica(),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    found = found_in(bytecode(Case(name, "", LEGAL[name])), Policy())
    assert [f for f in found if f.rule.severity >= Severity.WARNING] == []


def test_collectives_along_a_mesh_are_legal(neuron_devices: list[jax.Device]) -> None:
    """Sharded products, an embedding and a ring, on the partitioner's own terms."""
    mesh = Mesh(np.array(neuron_devices).reshape(2, 4), ("data", "model"))

    def step(table, x):
        def ring(y):
            return lax.ppermute(y, "model", [(i, (i + 1) % 4) for i in range(4)])

        spec = PartitionSpec("data", "model")
        y = jax.shard_map(ring, mesh=mesh, in_specs=spec, out_specs=spec)(x @ table)
        return jax.nn.log_softmax(y @ table.T)[jnp.arange(8), jnp.arange(8)].sum()

    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("data", "model"))
    lowered = (
        jax.jit(jax.grad(step), in_shardings=(sharding, sharding))
        .trace(programs.X.T[:, :8] @ programs.X, programs.X)
        .lower()
    )
    cores = Cores(Machine.create("trn2.3xlarge", 1), tuple(range(8)))
    found = partitioned(lowered, 8, Policy(), cores)
    assert [str(f) for f in found if f.rule.severity >= Severity.WARNING] == []
