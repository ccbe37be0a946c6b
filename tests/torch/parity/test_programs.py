"""Modules of PyTorch as functions of JAX, against PyTorch."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import neuronjax
from neuronjax.errors import ArgumentMismatchError, ConfigurationError
from neuronjax.torch import State, as_jax, to_jax
from tests.torch.parity.modules import CASES, Convolutional, made
from tests.torch.survey import architectures


def assert_equal(got: object, want: object, tolerance: float = 1e-5) -> None:
    """All arrays of two trees, where those of PyTorch may have 64 bits."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    for value, expected in pairs:
        expected = expected.detach().numpy()
        np.testing.assert_allclose(value, expected, atol=tolerance * max(1, abs(expected).max()))


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    module, x = made(name)
    program = to_jax(module.eval(), x)
    assert_equal(jax.jit(program)(program.state, x.numpy()), module(x))


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    module, x = made(name)
    program = to_jax(module, x)

    def loss(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        result, *_ = jax.tree.leaves(program(State(parameters, program.state.buffers), x))
        return jnp.mean(result**2)

    got, of_input = jax.jit(jax.grad(loss, argnums=(0, 1)))(program.state.parameters, x.numpy())
    x.requires_grad_()
    result = module(x)
    ((result[0] if isinstance(result, tuple) else result) ** 2).mean().backward()
    assert_equal(of_input, x.grad)
    assert_equal(got, {name: value.grad for name, value in module.named_parameters()})


def test_masks_that_are_made_by_vmap() -> None:
    """Their functions of indices (``torch.autograd.Function``) have nothing to differentiate."""
    module, inputs = architectures.of_transformers()["unlimited_ocr"]()
    program = to_jax(module, **inputs)
    given = {name: value.numpy() for name, value in inputs.items()}
    got = jax.jit(lambda state, given: program(state, **given))(program.state, given)
    assert_equal(got.last_hidden_state, module(**inputs).last_hidden_state)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training(optimizer: str) -> None:
    """Losses of 20 steps and the statistics of batch norm that they leave."""
    module, _ = made("convolutional")
    program = to_jax(module, torch.randn(4, 3, 8, 8))
    batches = np.random.default_rng(0).normal(size=(20, 4, 3, 8, 8)).astype(np.float32)
    ours = {"sgd": optax.sgd(1e-3, 0.9), "adamw": optax.adamw(1e-3, weight_decay=1e-2)}[optimizer]
    state = program.state

    def loss(
        parameters: dict[str, jax.Array], buffers: dict[str, jax.Array], x: jax.Array
    ) -> tuple[jax.Array, State]:
        result, after = program.update(State(parameters, buffers), x)
        return jnp.mean((result - 1) ** 2), after

    @jax.jit
    def step(state: State, moments: optax.OptState, x: jax.Array) -> tuple[object, ...]:
        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(*state, x)
        changes, moments = ours.update(gradients, moments, state.parameters)
        parameters = optax.apply_updates(state.parameters, changes)
        return value, State(parameters, after.buffers), moments

    theirs = {
        "sgd": lambda: torch.optim.SGD(module.parameters(), 1e-3, 0.9),
        "adamw": lambda: torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-2),
    }[optimizer]()
    moments = ours.init(state.parameters)
    losses, expected = [], []
    for x in batches:
        value, state, moments = step(state, moments, x)
        losses.append(float(value))
        theirs.zero_grad()
        value = ((module(torch.from_numpy(x)) - 1) ** 2).mean()
        value.backward()
        theirs.step()
        expected.append(value.item())
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    named = dict(module.named_buffers())
    assert_equal({name: state.buffers[name] for name in named}, named, 1e-4)


def test_state() -> None:
    """A tied weight is one array, statistics and tables are no parameters, and the module stays."""
    module, x = made("convolutional")
    before = dict(vars(module))
    program = to_jax(module, x)
    assert sorted(program.state.parameters) == sorted(name for name, _ in module.named_parameters())
    assert {*program.state.buffers} - {name for name, _ in module.named_buffers()} == {"table"}
    jax.jit(program)(program.state, x.numpy())
    assert vars(module) == before
    module.conv.weight.requires_grad_(False)
    assert "conv.weight" in to_jax(module, x).state.buffers


@functools.lru_cache
def _kept(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, device=device).cumsum(0)


class _Remembering(nn.Module):
    """Keeps a tensor between calls, as libraries keep positions, unless it is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = _kept.__wrapped__ if torch.compiler.is_compiling() else _kept
        return x + positions(x.shape[-1], x.device)


def test_what_a_module_keeps_between_calls() -> None:
    module, x = _Remembering(), torch.ones(2, 3)
    program = to_jax(module, x)
    assert_equal(jax.jit(program)(program.state, x.numpy()), module(x))
    assert neuronjax.estimate(program).step_ns > 0


def test_dropout() -> None:
    module = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    x = torch.ones(4, 8)
    program = to_jax(module, x)
    run = jax.jit(program)
    first, same, other = (run(program.state, x.numpy(), key=jax.random.key(at)) for at in (0, 0, 1))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    kept = np.asarray(first) != 0
    assert 0.35 < kept.mean() < 0.65
    np.testing.assert_allclose(np.asarray(first)[kept], 2 * module[0](x).detach()[kept], rtol=1e-5)
    with pytest.raises(ConfigurationError, match="random numbers: pass key"):
        run(program.state, x.numpy())
    module.eval()
    assert_equal(run(program.state, x.numpy(), key=None), module(x))


def test_tools_take_modules() -> None:
    module, x = made("convolutional")
    module.eval()
    estimate = neuronjax.estimate(module, x)
    assert {kernel.source.partition(":")[0] for kernel in estimate.kernels} == {
        Convolutional.forward.__code__.co_filename
    }
    sizes = estimate.memory
    assert sizes["weights"] == 4 * sum(value.numel() for value in module.parameters())
    assert 0 < neuronjax.compare(module, x).outputs[0].accumulated.relative < 1e-5
    assert neuronjax.nan_report(module, x) is None
    assert "convolution" in str(neuronjax.nan_report(module, x / 0))
    neuronjax.testing.assert_neuron_compatible(module, x)


def test_layers_are_the_paths_of_modules(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return x

    program = to_jax(Model(), torch.ones(128, 64))
    run = jax.jit(program)
    text = run.lower(program.state, np.ones((128, 64), np.float32)).as_text(debug_info=True)
    for scope in ("module(layers.0)/module(0)", "module(layers.1)/module(0)"):
        assert f"module(Model)/{scope}/" in text


def test_meta_costs_no_memory() -> None:
    with torch.device("meta"):
        module = nn.Linear(1 << 17, 1 << 17, dtype=torch.bfloat16)
        x = torch.ones(1, 1 << 17, dtype=torch.bfloat16)
    estimate = neuronjax.estimate(module, x, target="trn2.48xlarge")
    assert estimate.memory["weights"] >= 2 << 34
    with pytest.raises(ArgumentMismatchError, match="has no value"):
        neuronjax.compare(module, x)


def test_only_modules_become_programs() -> None:
    with pytest.raises(ConfigurationError, match=r"takes a torch\.nn\.Module, not function"):
        to_jax(lambda x: x)
    assert as_jax(jnp.sin, (1.0,)) == (jnp.sin, (1.0,), {})


@pytest.mark.parametrize("platform", ["cpu", "neuron"])
def test_state_is_a_copy(platform: str) -> None:
    """It keeps its values where the module goes on to be trained, and runs no program."""
    module = nn.Linear(64, 64)
    with jax.default_device(jax.devices(platform)[0]), neuronjax.profile() as recorded:
        state = to_jax(module, torch.ones(1, 64)).state
    before = np.array(state.parameters["weight"])
    with torch.no_grad():
        module.weight.add_(1)
    np.testing.assert_array_equal(state.parameters["weight"], before)
    assert recorded.profile is not None
    assert recorded.profile.counts == ()
