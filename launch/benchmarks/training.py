"""A training step of the Llama decoder on a (data, model) mesh, and compiling it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from launch.benchmarks.paired import Thunk
from models.llama.config import LlamaConfig
from models.llama.model import Llama
from models.llama.sharding import AXES, RULES
from models.losses import cross_entropy
from models.parameters import merge, split
from models.sharding import partition_spec

MODEL_AXIS = 2
BATCH = 16
LENGTH = 128
COMPILED_LAYERS = 12

_LEARNING_RATE = 1e-3

State = tuple[Any, Any]
Step = Callable[[State, jax.Array], tuple[State, jax.Array]]


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """All devices as ("data", "model"), MODEL_AXIS along "model" where there are so many."""
    model = MODEL_AXIS if len(devices) % MODEL_AXIS == 0 else 1
    return jax.make_mesh(
        (len(devices) // model, model),
        ("data", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )


@dataclass(frozen=True)
class Problem:
    """A decoder on its mesh: structure, parameters, and a batch of tokens [B, T + 1]."""

    graph: Any
    parameters: Any
    tokens: jax.Array


def make_problem(mesh: Mesh, config: LlamaConfig) -> Problem:
    """A decoder of random weights and random tokens, both laid out on `mesh`."""
    graph, parameters = split(Llama(config, rngs=nnx.Rngs(0)))
    specs = {path: partition_spec(path, AXES, RULES) for path in parameters}
    parameters = {
        path: jax.device_put(np.asarray(array), NamedSharding(mesh, specs[path]))
        for path, array in parameters.items()
    }
    numbers = np.random.default_rng(0).integers(0, config.vocab_size, (BATCH, LENGTH + 1))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return Problem(graph, parameters, jax.device_put(numbers.astype(np.int32), rows))


def make_step(graph: Any, optimizer: optax.GradientTransformation) -> Step:
    """The step function, not yet compiled: (state, tokens) to (next state, loss)."""

    def loss_of(parameters: Any, tokens: jax.Array) -> jax.Array:
        logits = merge(graph, parameters)(tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:]).mean()

    def step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        parameters, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, tokens)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), loss

    return step


def training_step(devices: Sequence[jax.Device]) -> Thunk:
    """One step of the default decoder, its state donated, waited for."""
    problem = make_problem(mesh_of(devices), LlamaConfig())
    optimizer = optax.adamw(_LEARNING_RATE)
    state = (problem.parameters, jax.jit(optimizer.init)(problem.parameters))
    step = jax.jit(make_step(problem.graph, optimizer), donate_argnums=0)

    def run() -> None:
        nonlocal state
        state, loss = step(state, problem.tokens)
        jax.block_until_ready((state, loss))

    return run


def compiling(devices: Sequence[jax.Device]) -> Thunk:
    """Lowers and compiles the step of a decoder of COMPILED_LAYERS unrolled blocks.

    Each call compiles another learning rate, so that no cache of any layer can answer.
    """
    problem = make_problem(mesh_of(devices), LlamaConfig(num_layers=COMPILED_LAYERS))
    moments = jax.jit(optax.adamw(_LEARNING_RATE).init)(problem.parameters)
    state = (problem.parameters, moments)
    rates = (_LEARNING_RATE * (1 + 1e-3 * i) for i in itertools.count(1))

    def run() -> None:
        step = make_step(problem.graph, optax.adamw(next(rates)))
        jax.clear_caches()
        jax.jit(step).lower(state, problem.tokens).compile()

    return run
