"""How a step is shared out over cores: the mesh, and who holds what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from launch.errors import MeshError
from models.sharding import MESH_AXES


def _size(axis: str, what: str) -> Any:
    return field(default=1, metadata={"axis": axis, "help": what})


def _setting(default: Any, what: str) -> Any:
    return field(default=default, metadata={"help": what})


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Sizes of mesh axes and what goes with them. Raises MeshError for sizes below 1."""

    pipeline_parallel_size: int = _size("stage", "Pipeline stages.")
    data_parallel_size: int = _size("data", "Copies of the model, each with its own rows.")
    fully_sharded_size: int = _size(
        "fsdp", "Cores that share rows and weights: each holds a part, and gathers it for use."
    )
    expert_parallel_size: int = _size("expert", "Cores that share rows and experts.")
    context_parallel_size: int = _size("context", "Cores that share the positions of a row.")
    tensor_parallel_size: int = _size("model", "Cores that share heads, widths and vocabulary.")
    gradient_accumulation_steps: int = _setting(
        1, "Micro-batches of a step, whose gradients are added up in FP32."
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type is int and value < 1:
                raise MeshError(f"--{each.name}={value}: choose a number from 1 on.")

    @classmethod
    def of(cls, sizes: Mapping[str, int], **settings: Any) -> "Parallelism":
        """For a mesh with these sizes of axes."""
        by_axis = {each.metadata.get("axis"): each.name for each in fields(cls)}
        return cls(**{by_axis[axis]: size for axis, size in sizes.items()}, **settings)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: size by axis, outermost first, without axes of size 1 but data and model."""
        sizes = {
            each.metadata["axis"]: getattr(self, each.name)
            for each in fields(self)
            if "axis" in each.metadata
        }
        always = ("data", "model")
        ordered = sorted(sizes, key=AXIS_ORDER.index)
        return {axis: sizes[axis] for axis in ordered if sizes[axis] > 1 or axis in always}

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


AXIS_ORDER = ("stage", *MESH_AXES)
"""Mesh axes, outermost first: cores along the last are nearest to each other."""
