"""What it takes to move the blocks of a text from one copy of the model to another."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from launch.serving.copies import COPIES
from launch.serving.runner.meter import seconds_of


class Transfer:
    """Times a collective permute between the meshes of two caches."""

    def __init__(self, source: Any, target: Any, sizes: Sequence[int]) -> None:
        """`source` and `target` are pages; as many blocks move as the next of `sizes` has."""
        self._sizes = sizes
        leaves = jax.tree.leaves(source)
        meshes = (array.sharding.mesh for array in (leaves[0], jax.tree.leaves(target)[0]))
        self._mesh = _side_by_side(*meshes)
        # What is alike moves together.
        self._kinds = Counter((leaf.shape[1:], leaf.dtype, leaf.sharding.spec) for leaf in leaves)
        self._known: dict[int, float] = {}

    def seconds(self, blocks: int) -> float:
        """What so many blocks take. Raises ServingError if the platform does not say so."""
        size = self._sizes[bisect_left(self._sizes, blocks)]
        if size not in self._known:
            name = f"that moves {size} blocks to another mesh"
            self._known[size] = seconds_of(name, self._program(size))
        return self._known[size]

    def _program(self, blocks: int) -> Any:
        shapes, specs = [], []
        for (block, dtype, spec), count in self._kinds.items():
            specs.append(PartitionSpec(COPIES, None, *spec))
            sharding = NamedSharding(self._mesh, specs[-1])
            shape = (2, count, blocks, *block)
            shapes.append(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))
        return moving(self._mesh, specs).lower(shapes).compile()


def moving(mesh: Any, specs: Sequence[PartitionSpec]) -> Any:
    """A function of arrays whose first axis is that of the copies: what the first one has goes to
    the second."""

    def move(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        return [jax.lax.ppermute(array, COPIES, [(0, 1)]) for array in arrays]

    own = list(specs)
    return jax.jit(jax.shard_map(move, mesh=mesh, in_specs=(own,), out_specs=own))


def _side_by_side(first: Mesh, second: Mesh) -> Mesh:
    place = first.axis_names.index(COPIES)
    devices = np.concatenate([first.devices, second.devices], axis=place)
    return Mesh(devices, first.axis_names, axis_types=first.axis_types)
