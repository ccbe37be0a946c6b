"""The jitted pieces of training: initial state, one step, one evaluation."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from launch.meshes import batch_sharding, parameter_shardings, state_shardings
from launch.training.accumulation import accumulate
from launch.training.clipping import clip_by_global_norm
from launch.training.objectives import Batch, LanguageModelling, Loss, Objective
from launch.training.parallelism import Parallelism
from models.parameters import Parameters, merge, split, statistics
from models.pretrained import Described
from models.sharding import batch_spec


class TrainState(NamedTuple):
    """All that a step changes, besides the position in the data."""

    parameters: Parameters
    optimizer: Any  # the state of the optax transformation
    step: jax.Array  # int32 []: steps taken


class Training(NamedTuple):
    """The compiled functions of a run and the layout of what they take."""

    init: Callable[[], TrainState]
    start: Callable[[Parameters], TrainState]  # with weights that are there already
    step: jax.stages.Wrapped  # (TrainState, batch) to (TrainState, what is reported)
    evaluate: Callable[[Parameters, Batch], Loss]
    state: TrainState  # of jax.ShapeDtypeStruct
    shardings: TrainState
    batch: Batch  # of jax.ShapeDtypeStruct, the whole mesh's
    batch_shardings: Mapping[str, Any]  # like the batch


def make_training(
    model: Described,
    optimizer: optax.GradientTransformation,
    parallelism: Parallelism,
    *,
    mesh: Mesh,
    batch: Batch,
    objective: Objective | None = None,
    clip_norm: float | None = None,
    trained: Collection[str] | None = None,
    seed: int,
) -> Training:
    """Everything jitted for `mesh`, whose axes are those of `parallelism`.

    `batch` has the shapes of what a step takes, over the whole mesh. `step` donates its state and
    reports `loss` (mean over what counts), `grad_norm` (before clipping) and the objective's
    metrics; `start` donates its weights. The optimizer knows the parameters in `trained` alone,
    all but running statistics if it is None; the others stay as they are, and the statistics move
    as the model moves them, by their mean over micro-batches. Raises MeshError if the mesh fits
    neither model nor batch.
    """
    objective = objective or LanguageModelling()
    graph, parameters = model.architecture.abstract(model.config)
    micro_batches = parallelism.gradient_accumulation_steps
    running = statistics(merge(graph, parameters)).keys()
    learnt = (parameters.keys() if trained is None else set(trained)) - running

    def learnt_of(parameters: Parameters) -> Parameters:
        return {name: value for name, value in parameters.items() if name in learnt}

    def start(parameters: Parameters) -> TrainState:
        return TrainState(parameters, optimizer.init(learnt_of(parameters)), jnp.int32(0))

    def init() -> TrainState:
        return start(split(model.architecture.build(model.config, seed))[1])

    def loss_of(
        learning: Parameters, parameters: Parameters, batch: Batch, keys: jax.Array | None
    ) -> tuple[jax.Array, tuple[Loss, Parameters]]:
        module = merge(graph, {**parameters, **learning})
        loss = objective(module, batch, keys)
        return loss.total, (loss, statistics(module))

    def keys_of(step: jax.Array, rows: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), step)
        return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(rows))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        learning = learnt_of(state.parameters)

        def gradients_of(
            part: tuple[Batch, jax.Array],
        ) -> tuple[Parameters, tuple[Loss, Parameters]]:
            (_, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                learning, state.parameters, *part
            )
            return gradients, others

        keys = keys_of(state.step, _rows(batch))
        gradients, (loss, moved) = accumulate(gradients_of, (batch, keys), micro_batches)
        gradients = jax.tree.map(lambda g: g / loss.weight, gradients)
        gradients, norm = clip_by_global_norm(gradients, clip_norm)
        updates, moments = optimizer.update(gradients, state.optimizer, learning)
        changed = optax.apply_updates(learning, updates)
        for name, total in moved.items():
            changed[name] = (total / micro_batches).astype(state.parameters[name].dtype)
        new = TrainState({**state.parameters, **changed}, moments, state.step + 1)
        means = {name: total / loss.weight for name, total in loss.metrics.items()}
        return new, {"loss": loss.total / loss.weight, "grad_norm": norm, **means}

    def evaluate(parameters: Parameters, batch: Batch) -> Loss:
        return loss_of({}, parameters, batch, None)[1][0]

    by_path = parameter_shardings(mesh, parameters, model.architecture.axes)
    state = jax.eval_shape(init)
    shardings = state_shardings(mesh, state, by_path)
    batch_sharding(mesh, _rows(batch))
    rows = jax.tree.map(lambda x: NamedSharding(mesh, batch_spec(mesh.axis_names, x.ndim)), batch)
    return Training(
        init=jax.jit(init, out_shardings=shardings),
        start=jax.jit(start, out_shardings=shardings, donate_argnums=0),
        step=jax.jit(
            step,
            in_shardings=(shardings, rows),
            out_shardings=(shardings, None),
            donate_argnums=0,
        ),
        evaluate=jax.jit(evaluate, in_shardings=(by_path, rows)),
        state=state,
        shardings=shardings,
        batch=batch,
        batch_shardings=rows,
    )


def _rows(batch: Batch) -> int:
    return jax.tree.leaves(batch)[0].shape[0]
