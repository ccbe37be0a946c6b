"""The jitted pieces of training: initial state, one step, one evaluation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from launch.errors import MeshError, ModelError
from launch.meshes import state_shardings
from launch.training.combinations import check_combination
from launch.training.core_model import CoreModel, parts_of
from launch.training.dropout import NO_DROPOUT, DropoutSettings
from launch.training.gradients import CoreStep
from launch.training.initialisation import Initialisation, initialisation
from launch.training.kernels import COMPILER
from launch.training.layout import Layout, communicated, make_layout
from launch.training.objectives import Batch, LanguageModelling, Loss, Objective
from launch.training.parallelism import Parallelism
from launch.training.pipeline import Pipeline
from launch.training.precision import PRECISIONS, Precision
from launch.training.router_losses import NO_ROUTER_LOSSES, RouterLosses, RouterSettings
from launch.training.stages import make_pipeline
from launch.training.state import TrainState
from launch.training.step_functions import StepFunctions
from models.layers.linear import multiply_in
from models.parallel.context import AXIS as CONTEXT
from models.parallel.depth import Order, stack
from models.parallel.scan import are_alike
from models.parameters import (
    AxisNames,
    Parameters,
    amax_histories,
    axis_names_of,
    merge,
    split,
    statistics,
)
from models.pretrained import Described
from models.sharding import TENSOR_AXES, batch_spec

KINDS = {"state.parameters": "weights", "batch": "inputs"}
"""What the arguments of a step are, for memory by kind; optax's state is known by its type."""


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
        """The arguments of a step, as jax.ShapeDtypeStruct with shardings."""
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            (self.state, self.batch),
            (self.shardings, self.batch_shardings),
        )


def make_training(
    model: Described,
    optimizer: optax.GradientTransformation | Callable[[AxisNames], optax.GradientTransformation],
    parallelism: Parallelism,
    precision: Precision = PRECISIONS["fp32"],
    *,
    mesh: Mesh | AbstractMesh,
    batch: Batch,
    objective: Objective | None = None,
    router: RouterSettings = NO_ROUTER_LOSSES,
    dropout: DropoutSettings = NO_DROPOUT,
    kernels: str = COMPILER,
    clip_norm: float | None = None,
    trained: Collection[str] | None = None,
    ema_decay: float | None = None,
    seed: int,
) -> Training:
    """Everything jitted for `mesh`, whose axes are those of `parallelism`; `kernels`, a name of
    `KERNELS`, compute layers. The optimizer may be a function of the names of parameters' axes.

    `batch` has the shapes of what a step takes, over the whole mesh. `step` donates its state and
    reports `loss` (mean over what counts), `grad_norm` (before clipping), the objective's metrics
    and the losses of routers; `start` donates its weights. The optimizer knows the parameters in
    `trained` alone, all but running statistics if it is None; the others stay as they are, and the
    statistics move as the model moves them, by their mean over micro-batches. Raises MeshError if
    the mesh fits neither model nor batch, ModelError if its blocks are not alike, but are to be
    stacked, or if there are no routers to be charged or layers to drop.
    """
    first = initialisation(partial(_build, model, precision, dropout, seed))
    parts = _divide_model(model, first, parallelism, mesh, batch, router, trained)
    check_combination(model, parts.module, parallelism, mesh, batch, kernels)
    if parts.pipeline is not None:
        _check_kinds_of_pipeline(parts.kinds)
    sharing, kinds = model.architecture.sharing, parts.kinds
    # A core takes its positions out of whole rows, in an order that is none of a sharding.
    row_axes = [axis for axis in mesh.axis_names if axis != CONTEXT]
    core = CoreStep(
        model=CoreModel(split(parts.module)[0], parts.layout, parallelism, sharing, kernels),
        objective=objective or LanguageModelling(),
        precision=precision,
        learnt=kinds.learnt,
        running=kinds.running,
        histories=frozenset(kinds.histories),
        batch_specs=jax.tree.map(lambda x: batch_spec(row_axes, x.ndim), batch),
        micro_batches=parallelism.gradient_accumulation_steps,
        seed=seed,
        pipeline=parts.pipeline,
        routers=parts.routers,
    )
    is_made = isinstance(optimizer, optax.GradientTransformation)
    functions = StepFunctions(
        core=core,
        precision=precision,
        axes=parts.axes,
        optimizer=optimizer if is_made else optimizer(parts.axes),
        draw=partial(first.stacked, parts.order) if parallelism.stacks else first.parameters,
        parameters=kinds.parameters,
        histories=kinds.histories,
        clip_norm=clip_norm,
        ema_decay=ema_decay,
    )
    return _jit_functions(functions, mesh, batch, parts.order)


class _Kinds(NamedTuple):
    """A model's variables by what becomes of them; blocks are stacked where a step has stacks."""

    parameters: Parameters  # jax.ShapeDtypeStruct by path: all but histories
    histories: Parameters  # of largest magnitudes, jax.ShapeDtypeStruct by path
    running: frozenset[str]  # statistics among the parameters, which the model moves
    learnt: frozenset[str]  # those that the optimizer knows


def _kinds(
    module: Any,
    shapes: Parameters,
    trained: Collection[str] | None,
    stacked: Callable[[Parameters], Parameters],
) -> _Kinds:
    histories, running = stacked(amax_histories(module)), stacked(statistics(module)).keys()
    parameters = {path: leaf for path, leaf in stacked(shapes).items() if path not in histories}
    if trained is None:
        learnt = parameters.keys() - running
    else:
        learnt = stacked({path: shapes[path] for path in trained}).keys() - running
    return _Kinds(parameters, histories, frozenset(running), frozenset(learnt))


class _Divided(NamedTuple):
    """A model and how a mesh divides it."""

    module: Any  # of jax.ShapeDtypeStruct; of blocks that are stacked it has one
    axes: AxisNames
    kinds: _Kinds
    layout: Layout
    pipeline: Pipeline | None
    routers: RouterLosses | None
    order: Order | None  # as of `Training`


def _divide_model(
    model: Described,
    first: Initialisation,
    parallelism: Parallelism,
    mesh: Mesh | AbstractMesh,
    batch: Batch,
    router: RouterSettings,
    trained: Collection[str] | None,
) -> _Divided:
    """The model over the mesh; errors as of `make_training`."""
    module = merge(first.graph, first.shapes)
    axes = axis_names_of(first.graph, first.shapes)
    left = _left_axes(model, mesh)
    pipeline = order = None
    if parallelism.pipeline_parallel_size > 1:
        pipeline = make_pipeline(parallelism, communicated(mesh, left), first.shapes, batch)
        order = _if_permuted(pipeline.order)
    if parallelism.stacks:
        _check_alike(module, model)
    stacked = partial(stack, order=order) if parallelism.stacks else dict
    kinds = _kinds(module, first.shapes, trained, stacked)
    routers = router.of(model, module, batch)
    layout = make_layout(mesh, kinds.parameters, axes, left=left, zero=parallelism.zero_1)
    if parallelism.stacks:
        _keep_one_block(module)
    return _Divided(module, axes, kinds, layout, pipeline, routers, order)


def _jit_functions(
    functions: StepFunctions, mesh: Mesh | AbstractMesh, batch: Batch, order: Order | None
) -> Training:
    """The functions jitted, with the shardings of what they take and give."""
    core, parameters = functions.core, functions.parameters
    state = jax.eval_shape(functions.start, parameters)
    by_path = {path: NamedSharding(mesh, spec) for path, spec in core.model.layout.specs.items()}
    shardings = state_shardings(mesh, state, parameters, by_path)
    rows = jax.tree.map(lambda spec: NamedSharding(mesh, spec), core.batch_specs)
    return Training(
        init=jax.jit(functions.init, out_shardings=shardings),
        start=jax.jit(functions.start, out_shardings=shardings, donate_argnums=0),
        step=jax.jit(
            functions.step,
            in_shardings=(shardings, rows),
            out_shardings=(shardings, None),
            donate_argnums=0,
        ),
        evaluate=jax.jit(functions.evaluate, in_shardings=(shardings, rows)),
        state=state,
        shardings=shardings,
        batch=batch,
        batch_shardings=rows,
        order=order,
    )


def _check_kinds_of_pipeline(kinds: _Kinds) -> None:
    """Raises MeshError if there are variables that a pipeline does not keep."""
    not_kept = [*kinds.histories, *kinds.running]
    if not_kept:
        raise MeshError(
            "a pipeline does not keep histories of magnitudes or running statistics, which "
            f"{not_kept[0]} is. Choose another precision or model, or a mesh without stage."
        )


def _left_axes(model: Described, mesh: Mesh | AbstractMesh) -> tuple[str, ...]:
    """Axes that XLA's partitioner deals with: some architectures do not share layers by
    themselves."""
    if model.architecture.sharing is not None:
        return ()
    return tuple(axis for axis in TENSOR_AXES if mesh.shape.get(axis, 1) > 1)


def _if_permuted(order: Sequence[int | None]) -> Order | None:
    return None if list(order) == list(range(len(order))) else order


def _build(
    model: Described, precision: Precision, dropout: DropoutSettings, seed: int
) -> nnx.Module:
    module = model.architecture.build(precision.configure(model.config), seed)
    dropout.put_into(module, model.architecture.name)
    if (matmul := precision.make_matmul()) is not None:
        multiply_in(module, matmul)
    return module


def _check_alike(module: Any, model: Described) -> None:
    """Raises ModelError if the blocks of a model cannot be stacked."""
    for _, part in parts_of(module):
        if not are_alike(part):
            raise ModelError(
                f"--scan_layers and pipelines need blocks that are alike, which those of "
                f"{model.architecture.name} with this config are not. Leave them out."
            )


def _keep_one_block(module: Any) -> None:
    """Takes all blocks but the first, which stands for all, out of the model."""
    for _, part in parts_of(module):
        part.blocks = nnx.List(part.blocks[:1])
