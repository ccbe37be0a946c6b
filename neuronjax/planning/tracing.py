"""A workload as StableHLO for a mesh: traced and lowered by JAX, without any device."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from neuronjax.jaxlib_api import compile_options, mlir
from neuronjax.jaxlib_api.tracing import kept_arguments, lower_traced, static_arguments
from neuronjax.jaxlib_api.tracing import trace as traced_by_jax
from neuronjax.machine.axes import Axes, mesh_axes
from neuronjax.planning.argument_kinds import Argument, arguments_of
from neuronjax.planning.splits import check_splits
from neuronjax.planning.workload import Workload


@dataclass(frozen=True)
class Traced:
    """A global program, and what the caller knows of its arguments: as many as it keeps."""

    name: str
    code: bytes
    options: Any
    """jaxlib CompileOptions."""
    ranks: int
    arguments: tuple[Argument, ...]


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
    names = _names(workload)
    check_splits(workload.arguments, _paths(names, workload.arguments))
    is_jitted = all(hasattr(workload.fn, name) for name in ("trace", "lower"))
    fn = workload.fn if is_jitted else jax.jit(workload.fn)
    program = traced_by_jax(fn, workload.arguments)
    lowered = lower_traced(program)
    module = lowered.compiler_ir("stablehlo")
    partitions = _attribute(module, "mhlo.num_partitions")
    arguments = _arguments(workload, names, lowered, program.jaxpr)
    return Traced(
        name=str(module.operation.attributes["sym_name"]).strip('"'),
        code=mlir.portable_artifact(module),
        options=_options(partitions),
        ranks=partitions,
        arguments=tuple(arguments[index] for index in _kept_leaves(lowered, len(arguments))),
    )


def _arguments(
    workload: Workload, names: Sequence[str], lowered: Any, jaxpr: Any
) -> list[Argument]:
    """All leaves of the arguments, those included that jit drops because nothing uses them."""
    flat = jax.tree.leaves(lowered.args_info)
    static = static_arguments(workload.fn)
    tree = tuple(given for at, given in enumerate(workload.arguments) if at not in static)
    if len(jax.tree.leaves(tree)) != len(flat):  # nnx.jit passes what two arguments share once
        tree = lowered.args_info[0]
    paths = _paths([name for at, name in enumerate(names) if at not in static], tree)
    return arguments_of(tree, paths, [info.donated for info in flat], jaxpr, workload.kinds)


def _paths(names: Sequence[str], tree: tuple[Any, ...]) -> list[str]:
    """The places of leaves, as one would write them: ``params['head.table']``."""
    return [
        names[path[0].idx] + jax.tree_util.keystr(path[1:])
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _attribute(module: Any, name: str) -> int:
    attributes = module.operation.attributes
    return int(re.match(r"\d+", str(attributes[name]))[0]) if name in attributes else 1  # type: ignore[index]


def _kept_leaves(lowered: Any, count: int) -> list[int]:
    """The leaves that the program takes: jit drops those that nothing uses."""
    kept = kept_arguments(lowered)
    return sorted(kept) if kept is not None else list(range(count))


def _names(workload: Workload) -> list[str]:
    """The positional parameters that take the arguments, where Python knows them; ``rest[0]`` is
    the first of ``*rest``."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        for parameter in inspect.signature(workload.fn).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = range(max(0, len(workload.arguments) - len(names)))
                names += [f"{parameter.name}[{number}]" for number in rest]
            names.append(parameter.name)
    return [*names, *(f"argument{at}" for at in range(len(names), len(workload.arguments)))]


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
