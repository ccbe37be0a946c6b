"""Reads checkpoints of single blocks and of stacked blocks as either.

A run that scans its blocks has their parameters stacked, in an order that depends on how a pipeline
is cut, and a checkpoint is stored in the form its run used.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from models.parallel.depth import Order, stack, unstack

_NUMBER = re.compile(r"\bblocks\.\d+\.")
_STACK = "blocks.*."

ORDER = "block_order"
"""In the record of a checkpoint: the block of each row of its stacks, where they are not one after
the other."""


def is_stacked(tree: Any) -> bool:
    """Whether a tree of dictionaries by parameter path contains stacks."""
    paths = (jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree))
    return any(_STACK in path for path in paths)


def separate(target: Any, order: Order | None = None) -> Any:
    """The jax.ShapeDtypeStruct of single blocks, for those of stacks in an order; others stay."""

    def apart(parameters: Mapping[str, Any]) -> dict[str, Any]:
        rows = {path: _Rows(leaf) for path, leaf in parameters.items()}
        return {
            path: value.leaf if isinstance(value, _Rows) else value
            for path, value in unstack(rows, order).items()
        }

    return _map_parameters(apart, target)


def stacked_target(target: Any, order: Order | None = None) -> Any:
    """The inverse of `separate`: stacks are whole on every core that has one of their blocks."""

    def joined(parameters: Mapping[str, Any]) -> dict[str, Any]:
        first = {_NUMBER.sub(_STACK, path): leaf for path, leaf in parameters.items()}
        return {
            path: leaf
            if path in parameters
            else _place_shape(leaf, (None, *_spec(first[path])), first[path])
            for path, leaf in stack(parameters, order).items()
        }

    return _map_parameters(joined, target)


def convert(tree: Any, target: Any, stored: Order | None = None, order: Order | None = None) -> Any:
    """Stored arrays converted to the form of `target`; both may be stacks, each in its own
    order."""
    if is_stacked(tree) == is_stacked(target) and stored == order:
        return tree

    def converted(tree: Any) -> Any:
        single = _map_parameters(partial(unstack, order=stored), tree)
        if not is_stacked(target):
            return single
        return _map_parameters(partial(stack, order=order), single)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, target)
    return jax.jit(converted, out_shardings=shardings)(tree)


class _Rows:
    """What a stack of arrays looks like to `unstack`."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def __len__(self) -> int:
        return int(self.leaf.shape[0])

    def __getitem__(self, row: int) -> Any:
        shape = jax.ShapeDtypeStruct(self.leaf.shape[1:], self.leaf.dtype)
        return _place_shape(shape, _spec(self.leaf)[1:], self.leaf)


def _place_shape(shape: Any, spec: tuple[Any, ...], like: Any) -> jax.ShapeDtypeStruct:
    if not isinstance(like.sharding, NamedSharding):
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype)
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _spec(leaf: Any) -> tuple[Any, ...]:
    if not isinstance(leaf.sharding, NamedSharding):
        return ()
    spec = tuple(leaf.sharding.spec)
    return spec + (None,) * (len(leaf.shape) - len(spec))


def _map_parameters(function: Callable[[Mapping[str, Any]], dict[str, Any]], tree: Any) -> Any:
    """Maps the dictionaries by parameter paths in a tree."""

    def is_parameters(node: Any) -> bool:
        return isinstance(node, dict) and any("blocks." in str(key) for key in node)

    return jax.tree.map(
        lambda node: function(node) if is_parameters(node) else node, tree, is_leaf=is_parameters
    )
