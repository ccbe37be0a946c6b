"""How a step is shared out over cores: the mesh, and who holds what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from launch.errors import MeshError
from launch.settings import check_settings, setting
from launch.training.pipeline_schedule import SCHEDULES
from models.parallel.blocks import RECOMPUTATION
from models.parallel.context import METHODS
from models.sharding import MESH_AXES

KV_REPLICA = "kv_replica"

_AXIS_OF = {
    "pipeline_parallel_size": "stage",
    "data_parallel_size": "data",
    "fully_sharded_size": "fsdp",
    "expert_parallel_size": "expert",
    "context_parallel_size": "context",
    "tensor_parallel_size": "model",
}


def _size(meaning: str) -> Any:
    return setting(1, meaning, lowest=1)


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Sizes of mesh axes and what goes with them. Raises SettingsError or MeshError
    for what cannot be."""

    pipeline_parallel_size: int = _size("Pipeline stages.")
    data_parallel_size: int = _size("Copies of the model, each with its own rows.")
    fully_sharded_size: int = _size(
        "Cores that share rows and weights: each holds a part, and gathers it for use."
    )
    expert_parallel_size: int = _size("Cores that share rows and experts.")
    context_parallel_size: int = _size("Cores that share the positions of a row.")
    tensor_parallel_size: int = _size("Cores that share heads, widths and vocabulary.")
    kv_size_multiplier: int = setting(
        1, "Cores that hold the same key-value heads; given by the model.", lowest=1
    )
    sequence_parallel: bool = setting(
        True, "Split norms and the residual stream by positions over the tensor-parallel cores."
    )
    zero_1: bool = setting(
        False, "Split masters and optimizer state over data-parallel cores (ZeRO-1)."
    )
    context_parallel_method: str = setting(
        "ring",
        "How attention sees other cores' positions: keys and values travel, or each core gets "
        "whole rows for some of its heads.",
        choices=METHODS,
    )
    pipeline_schedule: str = setting(
        "1f1b",
        "Backward passes after all forward passes, or as soon as they can be.",
        choices=SCHEDULES,
    )
    pipeline_parallel_num_microbatches: int | None = setting(
        None, "Micro-batches that go through a pipeline; default: twice its stages.", lowest=1
    )
    virtual_pipeline_parallel_size: int = setting(
        1, "Chunks of blocks that each stage has, which micro-batches visit in turn.", lowest=1
    )
    pipeline_cuts: str | None = setting(
        None, "Blocks before which a pipeline is cut, such as 3,6; default: by their cost."
    )
    gradient_accumulation_steps: int = setting(
        1, "Micro-batches of a step, whose gradients are added up in FP32.", lowest=1
    )
    scan_layers: bool = setting(
        False, "Compile the blocks of a model once, not one after the other; they must be alike."
    )
    recompute: str = setting(
        "none",
        "What the backward pass makes again: nothing, attention scores, all but products with "
        "weights, everything; or products are kept in the memory of the host.",
        choices=RECOMPUTATION,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.tensor_parallel_size % self.kv_size_multiplier:
            raise MeshError(
                f"--kv_size_multiplier={self.kv_size_multiplier} does not divide "
                f"--tensor_parallel_size={self.tensor_parallel_size}. Leave it out."
            )

    @classmethod
    def of(cls, sizes: Mapping[str, int], **settings: Any) -> "Parallelism":
        """For a mesh with these sizes of axes."""
        replicas = sizes.get(KV_REPLICA, 1)
        by_axis = {axis: name for name, axis in _AXIS_OF.items()}
        named: dict[str, Any] = {
            by_axis[axis]: size for axis, size in sizes.items() if axis != KV_REPLICA
        }
        if replicas > 1:
            named["tensor_parallel_size"] = named.get("tensor_parallel_size", 1) * replicas
            named["kv_size_multiplier"] = replicas
        return cls(**named, **settings)

    def fitted(self, config: Any) -> "Parallelism":
        """With as many copies of key-value heads as a model of this config needs.

        Raises MeshError if tensor parallelism is no multiple of its heads.
        """
        heads = getattr(config, "num_kv_heads", None)
        if heads is None or self.tensor_parallel_size <= heads:
            return self
        copies, rest = divmod(self.tensor_parallel_size, heads)
        if rest:
            raise MeshError(
                f"--tensor_parallel_size={self.tensor_parallel_size} is no multiple of the "
                f"model's {heads} key-value heads, which it exceeds. Choose a multiple."
            )
        return replace(self, kv_size_multiplier=copies)

    @property
    def stacks(self) -> bool:
        """Whether parameters of blocks are stacked: stages hold some layers of a stack each."""
        return self.scan_layers or self.pipeline_parallel_size > 1

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: size by axis, outermost first, without axes of size 1 but data and model."""
        sizes = {axis: getattr(self, name) for name, axis in _AXIS_OF.items()}
        sizes["model"] //= self.kv_size_multiplier
        sizes[KV_REPLICA] = self.kv_size_multiplier
        return {a: sizes[a] for a in MESH_AXES if sizes[a] > 1 or a in ("data", "model")}

    def mesh(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh over the first of the devices, neighbours along `model`."""
        auto = (AxisType.Auto,) * len(self.axes)
        count = self.abstract_mesh().size
        return jax.make_mesh(
            tuple(self.axes.values()), tuple(self.axes), axis_types=auto, devices=devices[:count]
        )

    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        return AbstractMesh(tuple(self.axes.values()), tuple(self.axes))
