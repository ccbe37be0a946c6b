"""What lines and layers cost, against sums by hand and the times of kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.profiling.costs import by_layer, by_line
from neuronjax.profiling.records import Part
from tests.profiling import recorded
from tests.profiling.test_findings import kernel, program

TIMED = program(
    kernel(
        path="p/a", runs=2, duration_ns=10.0, busy_ns={"tensor": 5.0}, work={"hardware_flops": 8},
        parts=(Part("x:1", "model/block_0/mlp", 7.5), Part("x:2", "model/block_1", 2.5)),
    ),
    kernel(path="p/b", runs=1, duration_ns=4.0, parts=(Part("x:1", "model/block_0", 4.0),)),
    kernel(path="p/c", runs=1, duration_ns=1.0, parts=(Part("", "", 0.0), Part("", "", 0.0))),
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


@pytest.mark.parametrize("number", [0, 1])
def test_costs_are_the_times_of_kernels(number: int) -> None:
    timed = recorded.profile().programs[number]
    whole = sum(each.time_ns for each in timed.kernels)
    assert sum(cost.time for cost in by_line(timed).values()) == pytest.approx(whole)
    outermost = [cost.time for layer, cost in by_layer(timed).items() if "/" not in layer]
    assert sum(outermost) == pytest.approx(whole)
    for each in timed.kernels:
        assert sum(part.duration_ns for part in each.parts) == pytest.approx(each.duration_ns)
