"""Rows in this process's memory become arrays over the mesh of all processes."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from launch.data.batches import Batch
from launch.errors import MeshError


class Placement:
    """The devices that rows of batches go to. Raises MeshError if a process would get no rows."""

    def __init__(self, shapes: Batch, shardings: Mapping[str, Any]) -> None:
        """`shapes` are those of whole batches, `shardings` a tree like it."""
        self._shapes, self._shardings = shapes, shardings
        leaf, sharding = jax.tree.leaves(shapes)[0], jax.tree.leaves(shardings)[0]
        size = leaf.shape[0]
        needed = np.zeros(size, bool)
        for index in sharding.addressable_devices_indices_map(leaf.shape).values():
            needed[index[0]] = True
        self.rows = np.flatnonzero(needed)  # of each batch, those that this process needs
        if not len(self.rows):
            raise MeshError(
                f"process {jax.process_index()} of {jax.process_count()} has no device in the "
                "mesh. Choose a mesh that includes all devices with --mesh, or start fewer "
                "processes."
            )

    def place(self, local: Batch) -> Batch:
        """The arrays of a batch of which this process has the rows `rows`."""

        def place(rows: Any, shape: Any, sharding: Any) -> jax.Array:
            if sharding.is_fully_addressable:
                return jax.device_put(rows, sharding)
            return jax.make_array_from_callback(
                shape.shape, sharding, lambda index: self._part(rows, index)
            )

        placed: Batch = jax.tree.map(place, local, self._shapes, self._shardings)
        return placed

    def _part(self, rows: np.ndarray, index: Any) -> np.ndarray:
        """The part of a whole array with these slices."""
        first, last, _ = index[0].indices(int(self.rows[-1]) + 1)
        begin, end = np.searchsorted(self.rows, (first, last))
        part: np.ndarray = rows[(slice(begin, end), *index[1:])]
        return part
