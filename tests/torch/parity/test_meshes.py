"""Modules on a mesh: rules on the paths of their tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from torch import nn

import neuronjax
from neuronjax.errors import ConfigurationError
from neuronjax.torch import State, fully_sharded, specs, tensor_parallel, to_jax
from tests.torch.parity.decoders import decoder
from tests.torch.parity.modules import made


def placed(state: State, mesh: Mesh, split: State) -> State:
    return jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), state, split
    )


@pytest.fixture
def mesh(neuron_devices: list[jax.Device]) -> Mesh:
    return Mesh(np.array(neuron_devices[:4]).reshape(2, 2), ("data", "model"))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "olmo2", "granite"])
def test_a_models_own_plan(kind: str, mesh: Mesh) -> None:
    """On 2×2 cores it computes what PyTorch does on one."""
    module, ids = decoder(kind, rows=2)
    program = to_jax(module, ids)
    split = specs(program, tensor_parallel(module, "model"))
    layer = "model.layers.0.self_attn"
    assert split.parameters[f"{layer}.q_proj.weight"] == P("model", None)
    assert split.parameters[f"{layer}.o_proj.weight"] == P(None, "model")
    assert split.parameters["model.norm.weight"] == P()
    rows = jax.device_put(ids.numpy(), NamedSharding(mesh, P("data", None)))
    got = jax.jit(program)(placed(program.state, mesh, split), rows).logits
    np.testing.assert_allclose(got, module(ids).logits.detach(), atol=1e-5)


def test_a_plan_is_estimated_as_it_lies() -> None:
    module, ids = decoder("llama", rows=2)
    program = to_jax(module, ids)
    cores = 2 * module.config.num_key_value_heads
    few_heads = specs(program, tensor_parallel(module, "model", cores))
    assert few_heads.parameters["model.layers.0.self_attn.k_proj.weight"] == P()
    split = specs(program, tensor_parallel(module, "model"))
    estimate = neuronjax.estimate(
        program, mesh={"data": 2, "model": 2}, in_specs=(split, P("data", None))
    )
    whole = neuronjax.estimate(program)
    assert estimate.ranks == 4
    assert estimate.network_bytes > 0
    assert 0.4 < estimate.memory["weights"] / whole.memory["weights"] < 0.6


def test_fully_sharded_gradients(neuron_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(neuron_devices[:4]), ("data",))
    module, x = made("convolutional")
    program = to_jax(module, x)
    split = specs(program, {"dense.*": P()}, fully_sharded("data", 4))
    assert split.parameters["conv.weight"] == P("data", None, None, None)
    assert split.parameters["dense.weight"] == P()
    assert split.parameters["embed.weight"] == P()  # ten rows and columns

    def loss(state: State, x: jax.Array) -> jax.Array:
        return jnp.mean(program(state, x) ** 2)

    rows = jax.device_put(x.numpy(), NamedSharding(mesh, P("data")))
    state = placed(program.state, mesh, split)
    gradients = jax.jit(jax.grad(loss, allow_int=True))(state, rows).parameters
    module(x).square().mean().backward()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad, atol=1e-5)


def test_what_rules_cannot_say() -> None:
    module = nn.Linear(4, 4)
    program = to_jax(module, torch.ones(1, 4))
    with pytest.raises(ConfigurationError, match=r"like 'wieght'\. Did you mean weight"):
        specs(program, {"wieght": P("model")})
    with pytest.raises(ConfigurationError, match="Linear has no tp_plan"):
        tensor_parallel(module, "model")
