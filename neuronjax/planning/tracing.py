"""A workload as StableHLO for a mesh: traced and lowered by JAX, without any device."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from neuronjax.jaxlib_api import compile_options, mlir
from neuronjax.jaxlib_api.tracing import kept_arguments, lower
from neuronjax.machine.axes import Axes, mesh_axes
from neuronjax.planning.workload import Workload


@dataclass(frozen=True)
class Traced:
    """A global program, and what the caller knows of its arguments: as many as it keeps."""

    name: str
    code: bytes
    options: Any
    """jaxlib CompileOptions."""
    ranks: int
    arguments: tuple[str, ...]
    """Paths, such as ``state.optimizer[0].mu['head.table']``."""
    donated: frozenset[int]
    """Numbers of the arguments whose memory results may take over."""


def abstract_mesh(axes: Axes | AbstractMesh | Mesh | None) -> AbstractMesh:
    """The mesh of sizes by name, of a text as ``data=4,model=8``, or of a mesh of devices.

    TopologyError: malformed, or sizes that are no positive numbers.
    """
    if isinstance(axes, Mesh):
        return axes.abstract_mesh
    if isinstance(axes, AbstractMesh):
        return axes
    sizes = {"core": 1} if axes is None else mesh_axes(axes)
    types = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


def trace(workload: Workload) -> Traced:
    """The program of one call. Meshes of any devices, or of none, are as good as real ones."""
    is_jitted = all(hasattr(workload.fn, name) for name in ("trace", "lower"))
    fn = workload.fn if is_jitted else jax.jit(workload.fn)
    lowered = lower(fn, workload.arguments)
    module = lowered.compiler_ir("stablehlo")
    partitions = _attribute(module, "mhlo.num_partitions")
    flat = jax.tree_util.tree_leaves_with_path(lowered.args_info)
    kept = _kept(lowered, len(flat))
    names = _parameters(workload.fn)
    return Traced(
        name=str(module.operation.attributes["sym_name"]).strip('"'),
        code=mlir.portable_artifact(module),
        options=_options(partitions),
        ranks=partitions,
        arguments=tuple(_path(names, flat[index][0]) for index in kept),
        donated=frozenset(at for at, index in enumerate(kept) if flat[index][1].donated),
    )


def _attribute(module: Any, name: str) -> int:
    attributes = module.operation.attributes
    return int(re.match(r"\d+", str(attributes[name]))[0]) if name in attributes else 1  # type: ignore[index]


def _kept(lowered: Any, count: int) -> list[int]:
    """The leaves that the program takes: jit drops those that nothing uses."""
    kept = kept_arguments(lowered)
    return sorted(kept) if kept is not None else list(range(count))


def _path(names: list[str], path: tuple[Any, ...]) -> str:
    """The place of a leaf, as one would write it: ``params['head.table']``."""
    if getattr(path[0], "idx", None) != 0:
        return jax.tree_util.keystr(path[1:])
    position = path[1].idx
    name = names[position] if position < len(names) else f"argument{position}"
    return name + jax.tree_util.keystr(path[2:])


def _parameters(fn: Any) -> list[str]:
    """Names of positional parameters, where Python knows them."""
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _options(partitions: int) -> Any:
    options = compile_options.new()
    compile_options.assign(options, np.arange(partitions).reshape(1, partitions))
    build = options.executable_build_options
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = True
    compile_options.propagate_shardings(options, [False], [True])
    return options


def mesh_size(mesh: AbstractMesh) -> int:
    """Cores of a mesh."""
    return math.prod(mesh.shape.values())
