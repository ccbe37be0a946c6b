"""A model with room for adapters, and what lies there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from launch.errors import LaunchError
from launch.finetuning.adapter_files import load_adapter
from launch.finetuning.lora import linear_maps
from launch.meshes import parameter_shardings
from launch.serving.errors import RequestError
from models.errors import ModelsError
from models.layers.low_rank import StackedLowRank
from models.parameters import Parameters, axis_names_of, merge, split_abstract
from models.pretrained import Described, Pretrained


@dataclass(frozen=True)
class Stacks:
    """Room for adapters beside every linear map of a model."""

    base: Described
    graph: nnx.GraphDef[Any]  # of the model with the stacks
    shapes: Parameters  # of the stacks, as jax.ShapeDtypeStruct
    rank: int  # the highest

    @classmethod
    def of(cls, model: Pretrained, adapters: int, rank: int) -> "Stacks":
        """Room for so many adapters, and for texts without one."""
        base = Described(model.architecture, model.config, model.fields)

        def with_stacks(parameters: Parameters) -> nnx.Module:
            module: nnx.Module = merge(model.graph, parameters)
            add_stacks(module, _plain(base), adapters, rank, model.config.dtype)
            return module

        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for name, leaf in model.parameters.items()
        }
        graph, parameters = split_abstract(with_stacks, shapes)
        stacks = {name: leaf for name, leaf in parameters.items() if _is_stack(name)}
        return cls(base, graph, stacks, rank)

    def with_room(self, model: Pretrained, mesh: Mesh) -> Pretrained:
        """The model with empty stacks, each split over the mesh as the kernel beside it."""
        axes = axis_names_of(self.graph, {**model.parameters, **self.shapes})
        shardings = parameter_shardings(mesh, self.shapes, axes)

        def zeros() -> Parameters:
            return {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in self.shapes.items()}

        stacks: Parameters = jax.jit(zeros, out_shardings=shardings)()
        return model._replace(graph=self.graph, parameters={**model.parameters, **stacks})

    def read(self, directory: Path) -> dict[str, np.ndarray]:
        """An adapter in PEFT's layout, as the stacks hold it. Raises RequestError if it is none,
        belongs to another model or has too high a rank."""
        try:
            adapted, stored = load_adapter(directory, self.base)
        except (LaunchError, ModelsError) as error:
            raise RequestError(str(error), "lora_path") from error
        if adapted.heads:
            raise RequestError(
                f"the adapter in {directory} replaces {', '.join(adapted.heads)} as a whole, which "
                "is not served; merge it into the model",
                "lora_path",
            )
        scales = {path: a.scale for a in adapted.adapters for path in a.layer.paths}
        rank = max((adapter.rank for adapter in adapted.adapters), default=0)
        if rank > self.rank:
            raise RequestError(
                f"the adapter in {directory} has the rank {rank}; --max_lora_rank={self.rank} is "
                "the highest here",
                "lora_path",
            )
        return {
            name: _pad(value, name, self.rank, scales[name.rpartition(".lora.")[0]])
            for name, value in stored.items()
        }


def _plain(base: Described) -> nnx.Module:
    """The model in shapes, with weights that are not narrow."""
    module: nnx.Module = nnx.eval_shape(lambda: base.architecture.build(base.config))
    return module


def add_stacks(
    module: nnx.Module, plain: nnx.Module, adapters: int, rank: int, dtype: DTypeLike
) -> None:
    """Makes room for so many adapters, and for texts without one, beside every linear map of a
    model; `plain` is the same model with weights that are not narrow."""
    axes = {path: linear.axes() for path, linear in linear_maps(plain)}
    for path, linear in linear_maps(module):
        linear.lora = StackedLowRank(1 + adapters, *axes[path], rank=rank, dtype=dtype)


def put(
    stacks: Mapping[str, jax.Array], place: int, values: Mapping[str, np.ndarray]
) -> dict[str, jax.Array]:
    """The stacks with an adapter in a place; maps that it does not have are left as they are."""
    return {
        name: _put(stack, place, _fitting(stack, values.get(name)))
        for name, stack in stacks.items()
        if _is_stack(name)
    }


def _fitting(stack: jax.Array, value: np.ndarray | None) -> np.ndarray:
    dtype = np.dtype(stack.dtype)
    return np.zeros(stack.shape[1:], dtype) if value is None else value.astype(dtype)


def _put(stack: jax.Array, place: int, value: np.ndarray) -> jax.Array:
    return _replace_row(stack, np.int32(place), value)


@jax.jit
def _replace_row(stack: jax.Array, place: jax.Array, value: jax.Array) -> jax.Array:
    return stack.at[place].set(value)


def _is_stack(name: str) -> bool:
    return ".lora." in name


def _pad(value: np.ndarray, name: str, rank: int, scale: float) -> np.ndarray:
    """A factor a [*in, r] or b [r, *out] padded to the highest rank R ≥ r, with the scale in b."""
    is_a = name.endswith(".a")
    axis = value.ndim - 1 if is_a else 0
    widths = [(0, rank - value.shape[axis] if i == axis else 0) for i in range(value.ndim)]
    return np.pad(value if is_a else value * np.float32(scale), widths)
