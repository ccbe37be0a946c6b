"""The jitted pieces of training: initial state, one step, one evaluation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from launch.errors import MeshError, ModelError
from launch.meshes import state_shardings
from launch.training.clipping import clip_by_global_norm
from launch.training.combinations import check_combination
from launch.training.core_model import CoreModel, parts_of
from launch.training.gradients import CoreStep
from launch.training.initialisation import initialisation
from launch.training.layout import communicated, make_layout
from launch.training.objectives import Batch, LanguageModelling, Loss, Objective
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS, Precision
from launch.training.stages import make_pipeline
from models.layers.fp8 import next_history
from models.layers.linear import multiply_in
from models.parallel.context import AXIS as CONTEXT
from models.parallel.depth import Order, stack
from models.parameters import Parameters, amax_histories, merge, split, statistics
from models.pretrained import Described
from models.sharding import TENSOR_AXES, batch_spec


class TrainState(NamedTuple):
    """All that a step changes, besides the position in the data.

    With `scan_layers` parameters and moments of blocks are stacked; `models.parallel.depth` goes
    from one form to the other.
    """

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
    order: Order | None = None  # the block of each row of stacks; None: one after the other

    @property
    def arguments(self) -> tuple[TrainState, Batch]:
        """Of a step, as jax.ShapeDtypeStruct with shardings."""
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            (self.state, self.batch),
            (self.shardings, self.batch_shardings),
        )


def make_training(
    model: Described,
    optimizer: optax.GradientTransformation,
    parallelism: Parallelism,
    precision: Precision = PRECISIONS["fp32"],
    *,
    mesh: Mesh | AbstractMesh,
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
    neither model nor batch, ModelError if its blocks are not alike, but are to be stacked.
    """
    build = partial(_build, model, precision, seed)
    first = initialisation(build)
    abstract, unstacked = merge(first.graph, first.shapes), first.shapes
    left = _left_axes(model, mesh)
    pipeline = None
    if parallelism.pipeline_parallel_size > 1:
        pipeline = make_pipeline(parallelism, communicated(mesh, left), unstacked, batch)
    order = None if pipeline is None else _if_permuted(pipeline.order)
    stacked: Callable[[Parameters], Parameters] = dict
    if parallelism.stacks:
        _check_alike(abstract, model)
        stacked = partial(stack, order=order)
    variables = stacked(unstacked)
    histories, running = stacked(amax_histories(abstract)), stacked(statistics(abstract))
    parameters = {path: leaf for path, leaf in variables.items() if path not in histories}
    if trained is None:
        learnt = parameters.keys() - running.keys()
    else:
        learnt = stacked({path: unstacked[path] for path in trained}).keys() - running.keys()
    layout = make_layout(
        mesh, parameters, model.architecture.axes, left=left, zero=parallelism.zero_1
    )
    if parallelism.stacks:
        _keep_one_block(abstract)
    check_combination(model, abstract, parallelism, mesh, batch)
    if pipeline is not None and (histories or running):
        raise MeshError(
            "a pipeline does not keep histories of magnitudes or running statistics, which "
            f"{next(iter(histories or running))} is. Choose another precision or model, or a mesh "
            "without stage."
        )
    # A core takes its positions out of whole rows, in an order that is none of a sharding.
    row_axes = [axis for axis in mesh.axis_names if axis != CONTEXT]
    core = CoreStep(
        model=CoreModel(split(abstract)[0], layout, parallelism, model.architecture.sharing),
        objective=objective or LanguageModelling(),
        precision=precision,
        learnt=frozenset(learnt),
        running=frozenset(running),
        histories=frozenset(histories),
        batch_specs=jax.tree.map(lambda x: batch_spec(row_axes, x.ndim), batch),
        micro_batches=parallelism.gradient_accumulation_steps,
        seed=seed,
        pipeline=pipeline,
    )

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
        drawn = first.stacked(order) if parallelism.stacks else first.parameters()
        return start({path: drawn[path] for path in parameters})

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        weights = precision.quantized(state.parameters, model.architecture.axes)
        computed = core.gradients(weights, state.scaling, batch, state.step)
        learning = learnt_of(state.parameters)
        gradients = clip_by_global_norm(computed.gradients, computed.norm, clip_norm)
        gradients = {path: g.astype(learning[path].dtype) for path, g in gradients.items()}
        updates, moments = optimizer.update(gradients, state.optimizer, learning)
        changed = {**optax.apply_updates(learning, updates), **computed.statistics}
        new = {**state.parameters, **changed}
        scaling = {
            path: next_history(state.scaling[path], computed.amax[path]) for path in histories
        }
        average = None if ema_decay is None else _average_towards(state.average, new, ema_decay)
        reported = {
            name: total / computed.loss.weight for name, total in computed.loss.metrics.items()
        }
        reported |= {"loss": computed.loss.total / computed.loss.weight, "grad_norm": computed.norm}
        return TrainState(new, moments, state.step + 1, scaling, average), reported

    def evaluate(state: TrainState, batch: Batch) -> Loss:
        weights = precision.quantized(state.evaluated, model.architecture.axes)
        return core.losses(weights, state.scaling, batch)

    state = jax.eval_shape(start, parameters)
    by_path = {path: NamedSharding(mesh, spec) for path, spec in layout.specs.items()}
    shardings = state_shardings(mesh, state, parameters, by_path)
    rows = jax.tree.map(lambda spec: NamedSharding(mesh, spec), core.batch_specs)
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
        order=order,
    )


def _left_axes(model: Described, mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    """Axes that XLA's partitioner deals with: some architectures do not share layers by
    themselves."""
    if model.architecture.sharing is not None:
        return ()
    return tuple(axis for axis in TENSOR_AXES if mesh.shape.get(axis, 1) > 1)


def _if_permuted(order: Sequence[int | None]) -> Order | None:
    return None if list(order) == list(range(len(order))) else order


def _build(model: Described, precision: Precision, seed: int) -> nnx.Module:
    module = model.architecture.build(precision.configure(model.config), seed)
    if (matmul := precision.make_matmul()) is not None:
        multiply_in(module, matmul)
    return module


def _check_alike(module: Any, model: Described) -> None:
    """Raises ModelError if the blocks of a model cannot be stacked."""
    for _, part in parts_of(module):
        blocks = getattr(part, "blocks", None)
        if blocks is None or any(
            nnx.graphdef(block) != nnx.graphdef(blocks[0]) for block in blocks
        ):
            raise ModelError(
                f"--scan_layers and pipelines need blocks that are alike, which those of "
                f"{model.architecture.name} with this config are not. Leave them out."
            )


def _keep_one_block(module: Any) -> None:
    """Takes all blocks but the first, which stands for all, out of the model."""
    for _, part in parts_of(module):
        part.blocks = nnx.List(part.blocks[:1])


def _as_float32(parameters: Parameters) -> Parameters:
    return {path: jnp.array(leaf, jnp.float32, copy=True) for path, leaf in parameters.items()}


def _average_towards(
    average: Parameters | None, parameters: Parameters, decay: float
) -> Parameters:
    """The average, moved towards the parameters."""
    moved_average: Parameters = optax.incremental_update(
        _as_float32(parameters), average, 1 - decay
    )
    return moved_average
