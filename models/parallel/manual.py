"""Regions in which every core works on its own part of arrays, by its own communication."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec


def manual(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Any:
    """`function` of each core's parts, over all axes of the mesh.

    Within a region that is manual over some axes already, such as a pipeline's, it is over the
    others: its specs may name the former nevertheless, whose parts are the whole there.
    """
    here = jax.sharding.get_abstract_mesh()
    taken = frozenset(here.manual_axes)
    return jax.shard_map(
        function,
        mesh=here if taken else mesh,
        in_specs=without(in_specs, taken),
        out_specs=without(out_specs, taken),
        axis_names=frozenset(mesh.axis_names) - taken,
        check_vma=False,
    )


def without(specs: Any, axes: frozenset[str]) -> Any:
    """The specs without these mesh axes."""

    def reduced(spec: PartitionSpec) -> PartitionSpec:
        parts = ((part,) if isinstance(part, str) else tuple(part or ()) for part in spec)
        return PartitionSpec(*(tuple(a for a in part if a not in axes) or None for part in parts))

    return jax.tree.map(reduced, specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
