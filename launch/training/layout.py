"""Who holds what: how parameters are split between steps and in use, and what a core does to go
from one to the other."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from launch.meshes import parameter_shardings
from models.parallel.tensor import own_rows
from models.parameters import AxisNames, Parameters
from models.sharding import (
    BATCH_AXES,
    FULLY_SHARDED,
    TENSOR_AXES,
    VOCABULARY,
    axis_names,
    make_spec,
    split_axes,
)
from models.varying import vary, varying_axes

ZERO = "data"
"""The mesh axis over which ZeRO-1 splits what only the optimizer needs."""


@dataclass(frozen=True)
class Layout:
    """The parameters of a model on a mesh.

    A step is a `jax.shard_map` region: there every core has its parts, and communication along
    the `manual` axes is written out. The axes in `left` are left to XLA's partitioner.
    """

    mesh: Mesh | AbstractMesh
    left: tuple[str, ...]
    specs: Mapping[str, PartitionSpec]  # between steps
    #: Tables whose rows tensor parallelism does not divide: in a step they are filled up.
    uneven: Collection[str] = ()

    @property
    def manual(self) -> tuple[str, ...]:
        """The axes of the region along which there is anything to communicate."""
        return tuple(
            a for a in self.mesh.axis_names if self.mesh.shape[a] > 1 and a not in self.left
        )

    def region(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
        """The function of each core's parts as one of whole arrays."""
        if not self.manual:
            return function
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=frozenset(self.mesh.axis_names) - frozenset(self.left),
        )

    @property
    def rows(self) -> tuple[str, ...]:
        """The axes along which cores have other rows or positions."""
        axes = (*BATCH_AXES, "context")
        return tuple(axis for axis in self.manual if axis in axes)

    def region_spec(self, spec: PartitionSpec) -> PartitionSpec:
        """The part of a spec that counts in the region."""
        return make_spec([[a for a in axes if a in self.manual] for axes in split_axes(spec)])

    def for_step(self, parameters: Parameters) -> Parameters:
        """What a core holds between steps -> what it holds in a step: ZeRO-1's parts gathered.

        Gradients of the result are each core's own.
        """
        return {
            path: vary(self._gather_weight(path, weight, ZERO), self.manual)
            for path, weight in parameters.items()
        }

    def for_use(self, path: str, weight: jax.Array) -> jax.Array:
        """What a core holds in a step -> the weight as layers use it. A stack of blocks is given
        one by one, under the same path."""
        weight = self._gather_weight(path, weight, FULLY_SHARDED)
        axes = tuple(axis for axis in TENSOR_AXES if axis in self.manual)
        if path not in self.uneven or not axes:
            return weight
        return own_rows(weight, axes, columns=self._dimension(path, axes[0]) is not None)

    def reduced(self, gradients: Parameters) -> Parameters:
        """Each core's own gradients of `for_step` -> the sums over cores, split as `specs` says.

        They are added up in their dtypes, but in FP32 where axes are left to the partitioner: XLA
        ends the process at sums of BF16 in a region of some axes (jaxlib 0.10).
        """
        if self.left:
            gradients = {path: gradient.astype(jnp.float32) for path, gradient in gradients.items()}
        return {path: self._reduce_gradient(path, gradient) for path, gradient in gradients.items()}

    def _gather_weight(self, path: str, weight: jax.Array, axis: str) -> jax.Array:
        dimension = self._dimension(path, axis)
        if dimension is None or axis not in self.manual:
            return weight
        # The path of a stack, but one of its blocks.
        dimension -= len(self.specs[path]) - weight.ndim
        return jax.lax.all_gather(weight, axis, axis=dimension, tiled=True)

    def _reduce_gradient(self, path: str, gradient: jax.Array) -> jax.Array:
        dimension = self._dimension(path, ZERO)
        if dimension is not None and ZERO in self.manual:
            gradient = jax.lax.psum_scatter(gradient, ZERO, scatter_dimension=dimension, tiled=True)
        split = {axis for axes in split_axes(self.specs[path]) for axis in axes}
        whole = tuple(axis for axis in self.manual if axis in varying_axes(gradient) - split)
        return jax.lax.psum(gradient, whole) if whole else gradient

    def _dimension(self, path: str, axis: str) -> int | None:
        """Which dimension of the parameter the axis splits, if any; none of what is no parameter,
        such as a history of magnitudes."""
        for dimension, axes in enumerate(split_axes(self.specs.get(path, PartitionSpec()))):
            if axis in axes:
                return dimension
        return None


def communicated(mesh: Mesh | AbstractMesh, left: tuple[str, ...]) -> tuple[str, ...]:
    """The axes that are not left and split anything: those of size 1 do not."""
    return tuple(axis for axis in mesh.axis_names if axis not in left and mesh.shape[axis] > 1)


def make_layout(
    mesh: Mesh | AbstractMesh,
    parameters: Mapping[str, Any],
    axes: AxisNames,
    *,
    left: tuple[str, ...] = (),
    zero: bool,
) -> Layout:
    """The layout of parameters, given as anything with a shape.

    Axes in `left` are left to XLA's partitioner. With `zero` parameters are split over ZERO too,
    where a dimension allows it. Raises MeshError if an axis does not divide evenly.
    """
    by_path = parameter_shardings(mesh, parameters, axes)
    specs = {path: sharding.spec for path, sharding in by_path.items()}
    if zero and mesh.shape.get(ZERO, 1) > 1:
        specs = {
            path: _with_zero(mesh, path, parameters[path].shape, spec)
            for path, spec in specs.items()
        }
    return Layout(mesh, left, specs, _uneven_tables(mesh, parameters, axes))


def _uneven_tables(
    mesh: Mesh | AbstractMesh, parameters: Mapping[str, Any], axes: AxisNames
) -> frozenset[str]:
    """The parameters with a row for each word whose words tensor parallelism does not divide."""
    cores = math.prod(mesh.shape.get(axis, 1) for axis in TENSOR_AXES)
    return frozenset(
        path
        for path, parameter in parameters.items()
        if axis_names(path, axes)[:1] == (VOCABULARY,) and parameter.shape[0] % cores
    )


def _with_zero(
    mesh: Mesh | AbstractMesh, path: str, shape: tuple[int, ...], spec: PartitionSpec
) -> PartitionSpec:
    """The spec with ZERO at the largest dimension that it divides; stacks stay whole."""
    axes = [list(part) for part in split_axes(spec)]
    sizes = [
        size // math.prod(mesh.shape[axis] for axis in part)
        for size, part in zip(shape, axes, strict=True)
    ]
    candidates = [
        dimension
        for dimension, size in enumerate(sizes)
        if size % mesh.shape[ZERO] == 0 and not (dimension == 0 and ".*." in path)
    ]
    if candidates:
        axes[max(candidates, key=lambda dimension: sizes[dimension])].append(ZERO)
    return make_spec(axes)
