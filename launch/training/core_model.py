"""A model as one core runs it, within the region of a step."""

from dataclasses import dataclass
from typing import Any

from flax import nnx
from jax.sharding import PartitionSpec

from launch.training.kernels import COMPILER, KERNELS
from launch.training.layout import Layout
from launch.training.parallelism import Parallelism
from launch.training.pipeline import AXIS as STAGE
from launch.training.router_losses import PATH as ROUTER_LOSSES
from models.layers.attention import Attention
from models.layers.dropout import share_positions
from models.layers.moe import MoE
from models.layers.norms import BatchNorm
from models.parallel import context, experts
from models.parallel.blocks import BlockRun, CoreBlock, fuse_projections, keep_no_scores
from models.parallel.context import ContextParallel
from models.parallel.experts import ExpertParallel
from models.parallel.tensor import Sharing, TensorParallel
from models.parameters import Parameters, merge
from models.sharding import FULLY_SHARDED, TENSOR_AXES, split_axes

REFERENCE = "reference"
"""The attribute of a model with a copy of it that is not trained."""


@dataclass(frozen=True)
class CoreModel:
    """What makes the model of a core's parts of parameters."""

    graph: nnx.GraphDef[Any]  # of the whole model; of one block where blocks are stacked
    layout: Layout
    parallelism: Parallelism
    sharing: Sharing | None
    kernels: str = COMPILER  # a name of KERNELS

    def __call__(self, parameters: Parameters) -> Any:
        """The module of what a core holds in a step, `Layout.for_step`."""
        outside = {
            path.replace(".*.", ".0."): weight
            if _in_block(path)
            else self.layout.for_use(path, weight)
            for path, weight in parameters.items()
            if path != ROUTER_LOSSES
        }
        model = merge(self.graph, outside)
        KERNELS[self.kernels](model)
        self._share_positions(model)
        self._share_experts(model)
        # A ring makes its scores again anyway, and so does a kernel.
        in_ring = self.context is not None and self.context.method == "ring"
        keeps_scores = self.kernels == COMPILER and not in_ring
        if self.parallelism.recompute == "selective" and keeps_scores:
            keep_no_scores(model)
        if self.parallelism.fuse_qkv:
            fuse_projections(model)
        for _, module in nnx.iter_modules(model):
            if isinstance(module, BatchNorm):
                module.axes = self.layout.rows
        tensor = self._tensor()
        for prefix, part in parts_of(model):
            self._wrap_blocks(prefix, part, tensor)
            if self.sharing is not None and tensor.vocabulary:
                self.sharing.model(part, tensor)
        return model

    @property
    def context(self) -> ContextParallel | None:
        """How positions are shared, if they are."""
        if context.AXIS not in self.layout.manual:
            return None
        size = self.layout.mesh.shape[context.AXIS]
        return ContextParallel(size, self.parallelism.context_parallel_method)

    @property
    def position_axes(self) -> tuple[str, ...]:
        """The axes along which cores have other positions of the same rows."""
        return (context.AXIS,) if context.AXIS in self.layout.manual else ()

    @property
    def splits_vocabulary(self) -> bool:
        """Whether the stages of a pipeline have a part of the vocabulary each."""
        spec = self.layout.specs.get("embedding.table", PartitionSpec())
        return STAGE in self.layout.manual and any(STAGE in axes for axes in split_axes(spec))

    def _share_positions(self, model: Any) -> None:
        if self.context is None:
            return
        model.context = self.context
        share_positions(model, self.context)
        for _, module in nnx.iter_modules(model):
            if isinstance(module, Attention):
                module.mix = self.context.attend

    def _share_experts(self, model: Any) -> None:
        if experts.AXIS not in self.layout.manual:
            return
        for _, module in nnx.iter_modules(model):
            if isinstance(module, MoE):
                module.mix = ExpertParallel()

    def _tensor(self) -> TensorParallel:
        axes = tuple(axis for axis in TENSOR_AXES if axis in self.layout.manual)
        stages = (STAGE,) if self.splits_vocabulary else ()
        return TensorParallel(axes, bool(axes) and self.parallelism.sequence_parallel, stages)

    def _wrap_blocks(self, prefix: str, model: Any, tensor: TensorParallel) -> None:
        sharing = self.sharing
        run = BlockRun(
            recompute=self.parallelism.recompute,
            gather=self.layout.for_use if FULLY_SHARDED in self.layout.manual else None,
            share=(lambda block: sharing.block(block, tensor)) if sharing and tensor.axes else None,
        )
        stacked = self.parallelism.stacks
        if run == BlockRun() and not stacked:
            return
        if getattr(model, "blocks", None) is None:
            return
        blocks = [
            CoreBlock(block, f"{prefix}blocks.{'*' if stacked else number}", run, stacked=stacked)
            for number, block in enumerate(model.blocks)
        ]
        model.blocks = nnx.List(blocks)


def parts_of(model: Any) -> list[tuple[str, Any]]:
    """A model, and the copy of it that it may have, with what their parameters' paths begin."""
    copy = getattr(model, REFERENCE, None)
    return [("", model)] if copy is None else [("", model), (f"{REFERENCE}.", copy)]


def _in_block(path: str) -> bool:
    return path.removeprefix(f"{REFERENCE}.").startswith("blocks.")
