"""Twenty steps of SGD and of AdamW on both sides, with the statistics that batch norms leave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from neuronjax.torch import State, to_jax
from neuronjax.torch.values import flatten
from tests.torch.parity import modules
from tests.torch.survey.architectures import Model, of_transformers

STEPS, TOLERANCE = 20, 1e-4
"""Steps, and the greatest relative difference of a loss and of a statistic."""

OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Any]] = {
    "sgd": (lambda weights: torch.optim.SGD(weights, 0.01, 0.9), optax.sgd(0.01, 0.9)),
    "adamw": (
        lambda weights: torch.optim.AdamW(weights, 1e-3, weight_decay=1e-2),
        optax.adamw(1e-3, weight_decay=1e-2),
    ),
}
"""The same optimizer for PyTorch and for JAX."""

KINDS = [
    "bert",
    "gpt2",
    "llama",
    "qwen3_moe",
    "t5",
    "vit",
    "swin",
    "resnet",
    "mobilenet_v2",
    "convnext",
]


def of_modules() -> dict[str, Callable[[], Model]]:
    """Modules of PyTorch and tiny models of transformers, in the mode of training."""
    makers = of_transformers()
    plain = {name: lambda name=name: _plain(name) for name in modules.CASES}
    return plain | {kind: lambda kind=kind: _training(makers[kind]()) for kind in KINDS}


def _plain(name: str) -> Model:
    module, x = modules.made(name)
    (first, *_) = module.forward.__code__.co_varnames[1:]
    return _training(Model(module, {first: x}))


def _training(model: Model) -> Model:
    """In the mode of training, with twice as many rows, for batch norms. Nothing is dropped: both
    sides would draw other numbers."""
    for part in model.module.modules():
        for name, value in vars(part).items():
            is_rate = "drop" in name and isinstance(value, float)
            if is_rate or (isinstance(part, torch.nn.Dropout) and name == "p"):
                setattr(part, name, 0.0)
    two = {
        name: torch.cat([value, value.flip(-1)]) if isinstance(value, torch.Tensor) else value
        for name, value in model.inputs.items()
    }
    return Model(model.module.train(), two)


def run(make: Callable[[], Model]) -> dict[str, Any]:
    """The greatest differences of losses and statistics over both optimizers."""
    module, inputs = make()
    row: dict[str, Any] = {"class": type(module).__name__, "error": 0.0, "statistics": 0.0}
    for theirs, ours in OPTIMIZERS.values():
        trained = copy.deepcopy(module)
        program = to_jax(copy.deepcopy(module), **inputs)
        expected = _of_torch(trained, inputs, theirs(trained.parameters()))
        losses, buffers = _of_jax(program, inputs, ours)
        row["error"] = max(row["error"], _relative(losses, expected))
        for name, value in trained.named_buffers():
            if name in buffers and name.rpartition(".")[2].startswith("running"):
                row["statistics"] = max(row["statistics"], _relative(buffers[name], value))
    is_equal = max(row["error"], row["statistics"]) <= TOLERANCE
    return row | {"outcome": "equal" if is_equal else "differs"}


def _batches(inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        yield {
            name: random.permuted(value.numpy(), axis=-1) if hasattr(value, "numpy") else value
            for name, value in inputs.items()
        }


def _of_torch(module: Any, inputs: dict[str, Any], optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for batch in _batches(inputs):
        given = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in batch.items()
        }
        optimizer.zero_grad()
        (first, *_), _ = flatten(module(**given))
        loss = ((first - 1) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _of_jax(program: Any, inputs: dict[str, Any], optimizer: Any) -> tuple[list[float], Any]:
    def loss(parameters: Any, buffers: Any, batch: Any) -> tuple[jax.Array, Any]:
        result, after = program.update(State(parameters, buffers), **batch)
        first, *_ = jax.tree.leaves(result)
        return jnp.mean((first - 1) ** 2), after.buffers

    @jax.jit
    def step(state: State, moments: Any, batch: Any) -> Any:
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(*state, batch)
        changes, moments = optimizer.update(gradients, moments, state.parameters)
        return value, State(optax.apply_updates(state.parameters, changes), buffers), moments

    state, moments, losses = program.state, optimizer.init(program.state.parameters), []
    for batch in _batches(inputs):
        given = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
        value, state, moments = step(state, moments, given)
        losses.append(float(value))
    return losses, state.buffers


def _relative(got: Any, expected: Any) -> float:
    ours, theirs = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(f"{(np.abs(ours - theirs) / np.abs(theirs).max()).max():.2g}")
