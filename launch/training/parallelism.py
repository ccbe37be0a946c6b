"""How a step is shared out over cores: the mesh, and who holds what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from launch.errors import MeshError
from launch.meshes import fitting_mesh, parse_mesh, text_of
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
SIZES = frozenset(_AXIS_OF)
"""The names of settings that a mesh stands for."""


def _size(meaning: str) -> Any:
    return setting(1, meaning, lowest=1)


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Sizes of mesh axes and what goes with them. Raises SettingsError or MeshError
    for what cannot be."""

    pipeline_parallel_size: int = _size("Pipeline stages.")
    data_parallel_size: int | None = setting(
        None,
        "Copies of the model, each with its own rows; default: as many as the cores allow.",
        lowest=1,
    )
    fully_sharded_size: int = _size(
        "Cores that share rows and weights: each holds a part, and gathers it for use."
    )
    expert_parallel_size: int = _size("Cores that share rows and experts.")
    context_parallel_size: int = _size("Cores that share the positions of a row.")
    tensor_parallel_size: int = _size("Cores that share heads, widths and vocabulary.")
    kv_size_multiplier: int = setting(
        1, "Cores that hold the same key-value heads; follows from the model.", lowest=1
    )
    axis_order: str | None = setting(
        None,
        "Mesh axes from the outermost to the innermost, whose cores are neighbours, such as "
        "stage,model,data; default: tensor parallelism innermost, as NxD places it.",
    )
    sequence_parallel: bool = setting(
        True, "Split norms and the residual stream by positions over the tensor-parallel cores."
    )
    fuse_qkv: bool = setting(
        False, "Compute queries, keys and values in one product, and gate and up in another."
    )
    zero_1: bool = setting(
        False, "Split masters and optimizer state over data-parallel cores (ZeRO-1)."
    )
    context_parallel_method: str = setting(
        "ring",
        "How attention reaches other cores' positions: ring passes keys and values on, "
        "all_to_all gives each core whole rows for some of its heads.",
        choices=METHODS,
    )
    pipeline_schedule: str = setting(
        "1f1b",
        "When backward passes run: after all forward passes (gpipe), or as soon as "
        "possible (1f1b).",
        choices=SCHEDULES,
    )
    pipeline_parallel_num_microbatches: int | None = setting(
        None, "Micro-batches of the pipeline; default: twice the number of stages.", lowest=1
    )
    virtual_pipeline_parallel_size: int = setting(
        1,
        "Chunks of blocks per stage, which micro-batches visit in turn (interleaved schedule).",
        lowest=1,
    )
    pipeline_cuts: str | None = setting(
        None, "Blocks before which a pipeline is cut, such as 3,6; default: evenly."
    )
    gradient_accumulation_steps: int = setting(
        1, "Micro-batches per step; their gradients are added up in FP32.", lowest=1
    )
    scan_layers: bool = setting(
        False, "Compile one block for all (scan); the blocks must be alike."
    )
    recompute: str = setting(
        "none",
        "What the backward pass recomputes: nothing (none), attention scores "
        "(selective), all but products with weights (dots), everything (full); offload "
        "keeps products in host memory.",
        choices=RECOMPUTATION,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.tensor_parallel_size % self.kv_size_multiplier:
            raise MeshError(
                f"--kv_size_multiplier={self.kv_size_multiplier} does not divide "
                f"--tensor_parallel_size={self.tensor_parallel_size}. Leave it out."
            )
        order = self._order
        if sorted(order) != sorted({*order} & {*_AXIS_OF.values()}):
            raise MeshError(
                f"--axis_order={self.axis_order} does not name mesh axes, each once, separated by "
                f"commas. They are {', '.join(_AXIS_OF.values())}."
            )

    @classmethod
    def of(cls, sizes: Mapping[str, int], **settings: Any) -> "Parallelism":
        """What a mesh of these sizes does. Raises MeshError for axes that only serving has."""
        replicas = sizes.get(KV_REPLICA, 1)
        by_axis = {axis: name for name, axis in _AXIS_OF.items()}
        if others := sizes.keys() - {*by_axis, KV_REPLICA}:
            raise MeshError(
                f"training has no mesh axis {', '.join(sorted(others))}. Its axes are "
                f"{', '.join((*by_axis, KV_REPLICA))}."
            )
        named: dict[str, Any] = {
            by_axis[axis]: size for axis, size in sizes.items() if axis != KV_REPLICA
        }
        if replicas > 1:
            named["tensor_parallel_size"] = named.get("tensor_parallel_size", 1) * replicas
            named["kv_size_multiplier"] = replicas
        return cls(**named, **settings)

    def fitted(self, config: Any) -> "Parallelism":
        """This parallelism with as many copies of key-value heads as a model of this config needs.

        Raises MeshError if tensor parallelism is no multiple of its heads.
        """
        heads = getattr(config, "num_kv_heads", None)
        if heads is None or self.tensor_parallel_size <= heads:
            return self
        copies, rest = divmod(self.tensor_parallel_size, heads)
        if rest:
            raise MeshError(
                f"--tensor_parallel_size={self.tensor_parallel_size} is not a multiple of the "
                f"model's {heads} key-value heads, which it exceeds. Choose a multiple."
            )
        return replace(self, kv_size_multiplier=copies)

    @property
    def stacks(self) -> bool:
        """Whether parameters of blocks are stacked: stages hold some layers of a stack each."""
        return self.scan_layers or self.pipeline_parallel_size > 1

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: size by axis, outermost first, without axes of size 1 but data and model.

        Raises MeshError if the order that was asked for lacks an axis.
        """
        sizes = {axis: getattr(self, name) or 1 for name, axis in _AXIS_OF.items()}
        sizes["model"] //= self.kv_size_multiplier
        sizes[KV_REPLICA] = self.kv_size_multiplier
        kept = {axis for axis, size in sizes.items() if size > 1 or axis in ("data", "model")}
        order = [axis for axis in MESH_AXES if axis in kept]
        if self.axis_order is not None:
            wanted = (*self._order, KV_REPLICA)  # beside the cores with other key-value heads
            absent = [f"{axis}={sizes[axis]}" for axis in order if axis not in wanted]
            if any(not size.endswith("=1") for size in absent):
                raise MeshError(
                    f"--axis_order={self.axis_order} has no place for {', '.join(absent)}. Name "
                    "all axes of the mesh."
                )
            places = {axis: 2 * place for place, axis in enumerate(self._order)}
            places[KV_REPLICA] = places.get("model", 0) + 1
            order.sort(key=lambda axis: places.get(axis, -1))
        return {axis: sizes[axis] for axis in order}

    @property
    def _order(self) -> list[str]:
        """The axes in the order that was asked for."""
        return [] if self.axis_order is None else self.axis_order.split(",")

    def on(self, mesh: str | None, num_devices: int, config: Any, rows: int) -> "Parallelism":
        """This parallelism with all sizes: those of the text of a mesh, or as many data-parallel
        copies as there are devices for; where no size is given, as `fitting_mesh` fits it to model
        and batch.

        Raises MeshError where mesh and sizes contradict each other or do not fit the devices.
        """
        sizes = {name: getattr(self, name) for name in _AXIS_OF}
        given = [f"--{name}={size}" for name, size in sizes.items() if size not in (None, 1)]
        if mesh is None and not given and self.data_parallel_size is None:
            return self._with_sizes(fitting_mesh(num_devices, config, rows))
        if mesh is not None and given:
            raise MeshError(
                f"--mesh={mesh} says the sizes of all axes, so {', '.join(given)} cannot be given "
                "too. Leave one of them out."
            )
        if mesh is not None:
            return self._with_sizes(parse_mesh(mesh)).fitted(config)
        others = math.prod(size for size in sizes.values() if size is not None)
        if self.data_parallel_size is None and num_devices % others:
            raise MeshError(
                f"{num_devices} devices cannot be divided into groups of {others} cores "
                f"({', '.join(given)}). Choose other sizes, or give --data_parallel_size."
            )
        data = self.data_parallel_size or num_devices // others
        return replace(self, data_parallel_size=data).fitted(config)

    def _with_sizes(self, sizes: Mapping[str, int]) -> "Parallelism":
        named = Parallelism.of(sizes)
        names = (*_AXIS_OF, "kv_size_multiplier")
        return replace(self, **{name: getattr(named, name) for name in names})

    def mesh(self, devices: Sequence[jax.Device]) -> Mesh:
        """The mesh over the first of the devices, neighbours along its last axis.

        Raises MeshError if there are too few.
        """
        auto = (AxisType.Auto,) * len(self.axes)
        count = self.abstract_mesh().size
        if count > len(devices):
            raise MeshError(
                f"--mesh={text_of(self.axes)} needs {count} devices, but there are "
                f"{len(devices)}. Choose sizes whose product is at most {len(devices)}."
            )
        return jax.make_mesh(
            tuple(self.axes.values()), tuple(self.axes), axis_types=auto, devices=devices[:count]
        )

    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices."""
        return AbstractMesh(tuple(self.axes.values()), tuple(self.axes))
