"""Experts that several cores share, against the same mixture on one core."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from launch.errors import ModelError
from launch.job import language_job
from models.layers.moe import Experts, MoE
from models.parallel.experts import ExpertParallel
from models.parameters import Parameters, merge, split
from tests.launch.programs import SOURCE, config
from tests.quick_compile import QUICK_COMPILE

DIM, HIDDEN, ROWS, LENGTH = 6, 8, 8, 5
SPECS = {
    "router": P(),
    "experts_gate": P("expert", None, "model"),
    "experts_up": P("expert", None, "model"),
    "experts_down": P("expert", "model", None),
    "shared.gate.kernel": P(None, "model"),
    "shared.up.kernel": P(None, "model"),
    "shared.down.kernel": P("model", None),
}


def weights_of(layer: nnx.Module) -> Parameters:
    """Random ones; a router of large numbers makes the loads of experts unequal."""
    rng = np.random.default_rng(1)
    shapes = split(layer)[1]
    weights = {name: rng.normal(size=leaf.shape).astype("f4") for name, leaf in shapes.items()}
    return weights | {"router": weights["router"] * 4}


@pytest.mark.parametrize(
    ("experts", "sizes", "kinds"),
    [
        (Experts(4, 2, HIDDEN), (4, 2), {"all-gather", "reduce-scatter"}),
        (
            Experts(8, 3, HIDDEN, gated_inputs=True, shared_dim=HIDDEN),
            (4, 2),
            {"all-gather", "reduce-scatter"},
        ),
        (Experts(8, 2, HIDDEN, capacity_factor=1.0), (4, 2), {"all-to-all"}),
    ],
    ids=["dropless", "gated-inputs", "capacity"],
)
def test_shared_experts_are_the_mixture(
    experts: Experts,
    sizes: tuple[int, int],
    kinds: set[str],
    neuron_devices: list[jax.Device],
) -> None:
    """Values, gradients and kinds of communication."""
    layer: Any = nnx.eval_shape(
        lambda: MoE(
            DIM, experts, act="silu", stddev=0.5, out_stddev=0.5, param_dtype="float32",
            rngs=nnx.Rngs(0),
        )
    )  # fmt: skip
    graph, weights = split(layer)[0], weights_of(layer)
    x = np.random.default_rng(2).normal(size=(ROWS, LENGTH, DIM)).astype("f4")

    def whole(weights: Parameters, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = merge(graph, weights)(x)
        return jnp.sum(y**2), y

    def part(weights: Parameters, x: jax.Array) -> jax.Array:
        layer = merge(graph, weights)
        layer.mix = ExpertParallel()
        y: jax.Array = jax.lax.psum(layer(x), "model")
        return y

    mesh = Mesh(np.array(neuron_devices[: sizes[0] * sizes[1]]).reshape(sizes), ("expert", "model"))

    def shared(weights: Parameters, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        region = jax.shard_map(
            part,
            mesh=mesh,
            in_specs=({name: SPECS[name] for name in weights}, P("expert")),
            out_specs=P("expert"),
        )
        y = region(weights, x)
        return jnp.sum(y**2), y

    differentiated = jax.value_and_grad(shared, argnums=(0, 1), has_aux=True)
    program = jax.jit(differentiated, compiler_options=QUICK_COMPILE).lower(weights, x).compile()
    text = program.as_text()
    assert text is not None
    found = {kind for kind in ("all-gather", "reduce-scatter", "all-to-all") if kind in text}
    assert found == kinds
    shardings = program.input_shardings[0]
    (_, y), gradients = program(*jax.device_put((weights, x), shardings))
    with jax.default_device(jax.devices("cpu")[0]):
        reference = jax.value_and_grad(whole, argnums=(0, 1), has_aux=True)
        (_, expected), of_whole = jax.jit(reference)(weights, x)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(of_whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4 * np.abs(theirs).max())


def test_a_run_limits_what_experts_take(tmp_path: Path) -> None:
    dense = SOURCE.model
    settings = replace(dense.config, experts=Experts(4, 2, 16))
    mixture = SOURCE._replace(model=dense._replace(config=settings))
    limited = config(tmp_path, expert_capacity_factor=0.5, steps=1)
    experts = language_job(mixture, limited).model.config.experts
    assert experts == Experts(4, 2, 16, capacity_factor=0.5)
    with pytest.raises(ModelError, match="needs a mixture of experts, but LlamaForCausalLM"):
        language_job(SOURCE, limited)
