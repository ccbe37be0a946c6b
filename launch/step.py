"""The jitted pieces of training: initial state, one step, one evaluation."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from launch.meshes import batch_sharding, parameter_shardings, state_shardings
from models.losses import cross_entropy
from models.parameters import Parameters, merge, split
from models.pretrained import Described
from models.sharding import batch_spec


class TrainState(NamedTuple):
    """All that a step changes, besides the position in the data."""

    parameters: Parameters
    optimizer: Any  # the state of the optax transformation


class Training(NamedTuple):
    """The compiled functions of a run and the layout of what they take."""

    init: Callable[[], TrainState]
    start: Callable[[Parameters], TrainState]  # with weights that are there already
    step: jax.stages.Wrapped  # (TrainState, batch) to (TrainState, what is reported)
    evaluate: Callable[[Parameters, jax.typing.ArrayLike], jax.Array]
    state: TrainState  # of jax.ShapeDtypeStruct
    shardings: TrainState
    batch_sharding: jax.sharding.NamedSharding


def make_training(
    model: Described,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    batch_size: int,
    seed: int,
) -> Training:
    """Everything jitted for `mesh`, for a decoder. Batches are int32 [batch_size, T + 1].

    `step` donates its state and reports `loss` (mean nats per token) and `grad_norm`, before
    clipping; `start` donates its weights; `evaluate` gives the mean nats per token of each row
    [batch_size]. Raises MeshError if the mesh fits neither model nor batch.
    """
    graph, parameters = model.architecture.abstract(model.config)

    def init() -> TrainState:
        _, parameters = split(model.architecture.build(model.config, seed))
        return TrainState(parameters, optimizer.init(parameters))

    def start(parameters: Parameters) -> TrainState:
        return TrainState(parameters, optimizer.init(parameters))

    def row_losses(parameters: Parameters, batch: jax.Array) -> jax.Array:
        tokens = jax.lax.with_sharding_constraint(batch[:, :-1], positions)
        logits = merge(graph, parameters)(tokens)
        return jnp.mean(cross_entropy(logits, batch[:, 1:]), axis=1)

    def step(state: TrainState, batch: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        loss, gradients = jax.value_and_grad(
            lambda parameters: jnp.mean(row_losses(parameters, batch))
        )(state.parameters)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.parameters)
        new_state = TrainState(optax.apply_updates(state.parameters, updates), optimizer_state)
        return new_state, {"loss": loss, "grad_norm": optax.tree.norm(gradients)}

    positions = NamedSharding(mesh, batch_spec(mesh.axis_names))
    by_path = parameter_shardings(mesh, parameters, model.architecture.axes)
    state = jax.eval_shape(init)
    shardings = state_shardings(mesh, state, by_path)
    rows = batch_sharding(mesh, batch_size)
    sharded = partial(jax.jit, in_shardings=(shardings, rows), out_shardings=(shardings, None))
    return Training(
        init=jax.jit(init, out_shardings=shardings),
        start=jax.jit(start, out_shardings=shardings, donate_argnums=0),
        step=sharded(step, donate_argnums=0),
        evaluate=jax.jit(row_losses, in_shardings=(by_path, rows)),
        state=state,
        shardings=shardings,
        batch_sharding=rows,
    )
