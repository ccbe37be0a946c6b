"""The jitted pieces of training: initial state, one step, one evaluation."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from launch.meshes import batch_sharding, parameter_shardings, state_shardings
from launch.training.accumulation import Part, accumulate
from launch.training.clipping import clip_by_global_norm
from launch.training.objectives import Batch, LanguageModelling, Loss, Objective
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS, Precision
from models.layers.fp8 import next_history
from models.layers.linear import multiply_in
from models.parameters import Parameters, amax_histories, merge, split, statistics
from models.pretrained import Described
from models.sharding import batch_spec


class TrainState(NamedTuple):
    """All that a step changes, besides the position in the data."""

    parameters: Parameters  # as the optimizer knows them: FP32 where there are master weights
    optimizer: Any  # the state of the optax transformation
    step: jax.Array  # int32 []: steps taken
    scaling: Parameters  # histories of largest magnitudes, FP32 [3, steps], for delayed scaling
    average: Parameters | None  # moving average of the parameters, FP32

    @property
    def evaluated(self) -> Parameters:
        """The parameters to evaluate and to use later: their average, if there is one."""
        return self.parameters if self.average is None else self.average


class Training(NamedTuple):
    """The compiled functions of a run and the layout of what they take."""

    init: Callable[[], TrainState]
    start: Callable[[Parameters], TrainState]  # with weights that are there already
    step: jax.stages.Wrapped  # (TrainState, batch) to (TrainState, what is reported)
    evaluate: Callable[[TrainState, Batch], Loss]
    state: TrainState  # of jax.ShapeDtypeStruct
    shardings: TrainState
    batch: Batch  # of jax.ShapeDtypeStruct, the whole mesh's
    batch_shardings: Mapping[str, Any]  # like the batch


def make_training(
    model: Described,
    optimizer: optax.GradientTransformation,
    parallelism: Parallelism,
    precision: Precision = PRECISIONS["fp32"],
    *,
    mesh: Mesh,
    batch: Batch,
    objective: Objective | None = None,
    clip_norm: float | None = None,
    trained: Collection[str] | None = None,
    ema_decay: float | None = None,
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
    micro_batches = parallelism.gradient_accumulation_steps
    build = partial(_build, model, precision, seed)
    abstract = nnx.eval_shape(build)
    graph, variables = split(abstract)
    histories, running = amax_histories(abstract), statistics(abstract)
    parameters = {path: leaf for path, leaf in variables.items() if path not in histories}
    learnt = (parameters.keys() if trained is None else set(trained)) - running.keys()

    def learnt_of(parameters: Parameters) -> Parameters:
        return {path: value for path, value in parameters.items() if path in learnt}

    def held(path: str, value: jax.Array) -> jax.Array:
        """What is never changed needs no more digits than layers compute with."""
        is_changed = path in learnt or path in running
        return value if is_changed else value.astype(precision.compute_dtype)

    def start(parameters: Parameters) -> TrainState:
        parameters = {path: held(path, value) for path, value in parameters.items()}
        return TrainState(
            parameters,
            optimizer.init(learnt_of(parameters)),
            jnp.int32(0),
            {path: jnp.zeros(history.shape, history.dtype) for path, history in histories.items()},
            None if ema_decay is None else _as_float32(parameters),
        )

    def init() -> TrainState:
        drawn = split(build())[1]
        return start({path: drawn[path] for path in parameters})

    def rounded(parameters: Parameters) -> Parameters:
        weights = {path: value for path, value in parameters.items() if path not in running}
        return {**parameters, **precision.rounded(weights)}

    def loss_of(
        learning: Parameters, others: Parameters, batch: Batch, keys: jax.Array | None
    ) -> tuple[jax.Array, tuple[Loss, Parameters]]:
        module = merge(graph, {**others, **learning})
        loss = objective(module, batch, keys)
        return loss.total, (loss, statistics(module))

    def keys_of(step: jax.Array, rows: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), step)
        return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(rows))

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        weights = rounded(state.parameters)

        def part_of(part: tuple[Batch, jax.Array]) -> Part:
            (_, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                learnt_of(weights) | state.scaling, weights, *part
            )
            amax = {path: gradients.pop(path) for path in histories}
            return Part((precision.accumulated(gradients), others), amax)

        keys = keys_of(state.step, _rows(batch))
        (gradients, (loss, moved)), amax = accumulate(part_of, (batch, keys), micro_batches)
        gradients = jax.tree.map(lambda g: g / loss.weight, gradients)
        gradients, norm = clip_by_global_norm(gradients, clip_norm)
        learning = learnt_of(state.parameters)
        gradients = {path: g.astype(learning[path].dtype) for path, g in gradients.items()}
        updates, moments = optimizer.update(gradients, state.optimizer, learning)
        changed = optax.apply_updates(learning, updates)
        for path, total in moved.items():
            changed[path] = (total / micro_batches).astype(state.parameters[path].dtype)
        new = {**state.parameters, **changed}
        metrics = {name: total / loss.weight for name, total in loss.metrics.items()}
        return (
            TrainState(
                new,
                moments,
                state.step + 1,
                {path: next_history(state.scaling[path], amax[path]) for path in histories},
                None if ema_decay is None else _moved(state.average, new, ema_decay),
            ),
            {"loss": loss.total / loss.weight, "grad_norm": norm, **metrics},
        )

    def evaluate(state: TrainState, batch: Batch) -> Loss:
        return loss_of(state.scaling, rounded(state.evaluated), batch, None)[1][0]

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
        evaluate=jax.jit(evaluate, in_shardings=(shardings, rows)),
        state=state,
        shardings=shardings,
        batch=batch,
        batch_shardings=rows,
    )


def _build(model: Described, precision: Precision, seed: int) -> nnx.Module:
    module = model.architecture.build(precision.configure(model.config), seed)
    if (matmul := precision.make_matmul()) is not None:
        multiply_in(module, matmul)
    return module


def _as_float32(parameters: Parameters) -> Parameters:
    return {path: jnp.array(leaf, jnp.float32, copy=True) for path, leaf in parameters.items()}


def _moved(average: Parameters | None, parameters: Parameters, decay: float) -> Parameters:
    """The average, moved towards the parameters."""
    moved: Parameters = optax.incremental_update(_as_float32(parameters), average, 1 - decay)
    return moved


def _rows(batch: Batch) -> int:
    return jax.tree.leaves(batch)[0].shape[0]
