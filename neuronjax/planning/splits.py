"""How arguments are split over a mesh: what does not divide, and which sizes of axes would."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from neuronjax.errors import TopologyError

_MOST_NAMED = 8
_MESSAGES = (
    re.compile(r"axis (?P<axis>\d+) is partitioned (?P<parts>\d+) times, but .* is (?P<size>\d+)"),
    re.compile(
        r"maps array axis (?P<axis>\d+) \(of size (?P<size>\d+)\) to mesh ax[ei]s .*?"
        r"\((?:of|with) (?:total )?size (?P<parts>\d+)\)"
    ),
)
"""What JAX says of an array within a program or of a result."""


def mesh_of(arguments: Any) -> AbstractMesh | None:
    """The mesh over which arguments say that they are split; None: none do, or over several."""
    meshes = {
        leaf.sharding.mesh.abstract_mesh
        for leaf in jax.tree.leaves(arguments)
        if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    }
    return meshes.pop() if len(meshes) == 1 else None


def check_splits(arguments: Any, paths: Sequence[str]) -> None:
    """TopologyError: a mesh does not divide an argument; the message has its path, the dimension,
    the axes, and the sizes of these that would."""
    for path, leaf in zip(paths, jax.tree.leaves(arguments), strict=True):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            _check(path, leaf.shape, sharding)


def _check(path: str, shape: tuple[int, ...], sharding: NamedSharding) -> None:
    sizes = sharding.mesh.shape
    for dimension, (size, entry) in enumerate(zip(shape, sharding.spec, strict=False)):
        axes = entry if isinstance(entry, tuple) else (entry,)
        named = [axis for axis in axes if isinstance(axis, str)]
        parts = math.prod(sizes[axis] for axis in named)
        if size % parts:
            asked = ",".join(f"{axis}={sizes[axis]}" for axis in named)
            which = f"sizes of {named[0]}" if len(named) == 1 else "products of these axes"
            raise TopologyError(
                f"argument {path} of shape {shape} has dimension {dimension} of size {size}, which "
                f"{asked} does not divide; {which} that do: {_divisors(size, parts)}."
            )


def in_one_line(message: str) -> str:
    """A message of JAX as one line, with the sizes that would divide where one does not."""
    line = " ".join(message.split())
    stated = next(filter(None, (pattern.search(line) for pattern in _MESSAGES)), None)
    if stated is None:
        return line
    axis, parts, size = (int(stated[name]) for name in ("axis", "parts", "size"))
    return (
        f"dimension {axis} of an array is of size {size}, which {parts} parts do not divide; "
        f"numbers of parts that do: {_divisors(size, parts)}"
    )


def _divisors(size: int, asked: int) -> str:
    """The divisors of a size that are nearest to a number, in order, as text."""
    divisors = [n for n in range(1, min(size, 64 * asked) + 1) if size % n == 0]
    nearest = sorted(divisors, key=lambda n: abs(math.log(n / asked)))[:_MOST_NAMED]
    return ", ".join(map(str, sorted(nearest))) or "none"
