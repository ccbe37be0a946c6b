"""What lines and layers cost, against sums by hand and the times of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.profiling.costs import by_layer, by_line
from neuronjax.profiling.records import Part
from tests.profiling import recorded
from tests.profiling.test_findings import kernel, program

TIMED = program(
    kernel(
        path="p/a", runs=2, added_ns=10.0, busy_ns={"tensor": 5.0}, work={"hardware_flops": 8},
        parts=(Part("x:1", "model/block_0/mlp", 7.5), Part("x:2", "model/block_1", 2.5)),
    ),
    kernel(path="p/b", runs=1, added_ns=4.0, parts=(Part("x:1", "model/block_0", 4.0),)),
    kernel(path="p/c", runs=1, added_ns=1.0, parts=(Part("", "", 0.0), Part("", "", 0.0))),
)  # fmt: skip


def test_lines() -> None:
    found = by_line(TIMED)
    assert {line: cost.time for line, cost in found.items()} == {"x:1": 19.0, "x:2": 5.0, "": 1.0}
    assert list(found) == ["x:1", "x:2", ""]
    assert (found["x:2"].kernels, found["x:2"].flops) == (1, 4.0)
    assert found["x:2"].busy == {"tensor": 2.5}


def test_layers_have_what_lies_within_them_and_come_before_it() -> None:
    found = {layer: cost.time for layer, cost in by_layer(TIMED).items()}
    assert list(found.items()) == [
        ("model", 24.0),
        ("model/block_0", 19.0),
        ("model/block_0/mlp", 15.0),
        ("model/block_1", 5.0),
        ("", 1.0),
    ]


def model(x: jax.Array, weights: jax.Array) -> jax.Array:
    def block(x: jax.Array, weight: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            x = jax.nn.softmax(x @ weight)
        with jax.named_scope("mlp"):
            return jax.nn.relu(x @ weight)

    for number in range(2):
        with jax.named_scope(f"block_{number}"):
            x = block(x, weights[number])

    def step(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        with jax.named_scope("tail"):
            return block(x, weight), None

    return jax.lax.scan(step, x, weights)[0].sum()


@pytest.mark.parametrize("cores", [1, 4])
def test_layers_of_a_gradient(cores: int) -> None:
    mesh = Mesh(np.array(jax.devices("neuron")[:cores]), ("data",))
    x = jax.device_put(jnp.ones((512, 256)), NamedSharding(mesh, PartitionSpec("data")))
    weights = jax.device_put(jnp.ones((2, 256, 256)), NamedSharding(mesh, PartitionSpec()))
    with neuronjax.profile() as found:
        jax.jit(jax.grad(model, 1))(x, weights)
    assert found.profile is not None
    (timed,) = found.profile.programs
    layers = by_layer(timed)
    inner = {f"{outer}/{part}" for outer in ("block_0", "block_1", "tail")
             for part in ("attention", "mlp")}  # fmt: skip
    assert inner | {"block_0", "block_1", "tail", ""} >= layers.keys() >= inner
    for outer in ("block_0", "block_1", "tail"):
        within = [cost.time for layer, cost in layers.items() if layer.startswith(f"{outer}/")]
        assert 0 < sum(within) <= layers[outer].time * (1 + 1e-9)
    assert layers["tail"].time > layers["block_0"].time  # two turns of a loop


def squared(outputs: jax.Array) -> jax.Array:
    return (outputs**2).mean()


def mlp(weights: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("up"):
        hidden = jax.nn.gelu(x @ weights[0])
    with jax.named_scope("down"):
        return squared(hidden @ weights[1])


def attention(weights: jax.Array, x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        with jax.named_scope("attention"):
            queries, keys, values = x @ weight, x @ (2 * weight), x @ (3 * weight)
            return x + jax.nn.softmax(queries @ keys.T / 16) @ values, None

    return squared(jax.lax.scan(layer, x, weights)[0])


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return linen.Dense(256, name="down")(linen.LayerNorm()(linen.Dense(256, name="up")(x)))


class Block(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.up, self.down = (nnx.Linear(256, 256, rngs=rngs) for _ in range(2))
        self.norm = nnx.LayerNorm(256, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.norm(self.up(x)))


def linen_block(parameters: Any, x: jax.Array) -> jax.Array:
    return squared(LinenBlock().apply(parameters, x))


def nnx_block(block: Block, x: jax.Array) -> jax.Array:
    return squared(block(x))


def in_shards(weights: jax.Array, x: jax.Array) -> jax.Array:
    def shard(x: jax.Array) -> jax.Array:
        with jax.named_scope("shard"):
            return jax.lax.pmean(squared(x @ weights[0]), "data")

    mesh = neuronjax.make_mesh({"data": 4})
    spec = PartitionSpec("data")
    return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(x)


X = np.ones((256, 256), np.float32)
WEIGHTS = np.full((2, 256, 256), 0.01, np.float32)


@pytest.mark.parametrize(
    ("loss", "make", "layers"),
    [
        pytest.param(mlp, lambda: WEIGHTS, {"up", "down"}, id="mlp"),
        pytest.param(attention, lambda: WEIGHTS, {"attention"}, id="attention"),
        pytest.param(
            linen_block, lambda: LinenBlock().init(jax.random.key(0), X),
            {"LinenBlock/up", "LinenBlock/down", "LinenBlock/LayerNorm_0"}, id="linen",
        ),
        pytest.param(nnx_block, Block, {"Block/Linear", "Block/LayerNorm"}, id="nnx"),
        pytest.param(in_shards, lambda: WEIGHTS, {"shard"}, id="shard_map"),
    ],
)  # fmt: skip
def test_nine_tenths_of_the_time_have_a_layer(
    loss: Callable[..., jax.Array], make: Callable[[], Any], layers: set[str]
) -> None:
    def step(parameters: Any, x: jax.Array) -> Any:
        return jax.value_and_grad(loss, allow_int=True)(parameters, x)

    parameters = make()
    with neuronjax.profile() as found:
        jax.jit(step)(parameters, X)
    assert found.profile is not None
    (timed,) = (program for program in found.profile.programs if program.name == "jit_step")
    costs = by_layer(timed)
    whole = sum(kernel.time_ns for kernel in timed.kernels)
    assert costs.keys() >= layers
    assert sum(cost.time for layer, cost in costs.items() if not layer) <= 0.1 * whole


def test_phases_of_a_gradient_are_told_apart() -> None:
    """The products of a layer with three: once forward, again recomputed, and twice backward. They
    are large enough that the first loads of a run, for which everything waits, are a small part."""
    weights, x = np.full((2, 512, 512), 0.01, np.float32), np.ones((512, 512), np.float32)
    with neuronjax.profile() as found:
        jax.jit(jax.grad(attention))(weights, x)
    assert found.profile is not None
    (timed,) = (program for program in found.profile.programs if program.ranks == 1)
    cost = by_layer(timed)["attention"]
    assert sum(cost.phases.values()) == pytest.approx(cost.time)
    assert set(cost.phases) == {"forward", "backward", "recomputed"}
    assert cost.phases["forward"] == pytest.approx(cost.phases["recomputed"], rel=0.5)
    assert cost.phases["backward"] > 1.2 * cost.phases["forward"]


@pytest.mark.parametrize("number", [0, 1])
def test_costs_are_the_times_of_kernels(number: int) -> None:
    timed = recorded.profile().programs[number]
    whole = sum(each.time_ns for each in timed.kernels)
    assert sum(cost.time for cost in by_line(timed).values()) == pytest.approx(whole)
    outermost = [cost.time for layer, cost in by_layer(timed).items() if "/" not in layer]
    assert sum(outermost) == pytest.approx(whole)
    for each in timed.kernels:
        assert sum(part.added_ns for part in each.parts) == pytest.approx(each.added_ns)
