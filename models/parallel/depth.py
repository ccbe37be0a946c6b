"""Parameters of blocks that are alike, stacked: `blocks.*.mlp.up.kernel` has those of all blocks
along its first axis."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

_NUMBERED = re.compile(r"(.*\.)?blocks\.(\d+)\.(.+)")
_STACKED = re.compile(r"((?:.*\.)?blocks)\.\*\.(.+)")


Order = Sequence[int | None]  # the block of each row of a stack; None: zeros, which nobody uses


def stack(tree: Any, order: Order | None = None) -> Any:
    """Every dictionary by parameter paths in the tree, with the parameters of blocks stacked: one
    after the other, or in an order of rows."""
    return _map_dictionaries(partial(_stack, order), tree)


def unstack(tree: Any, order: Order | None = None) -> Any:
    """The inverse of `stack`."""
    return _map_dictionaries(partial(_unstack, order), tree)


def paths_of_stacks(parameters: Iterable[str]) -> dict[str, list[str]]:
    """The path of each stack -> those of its blocks, in their order."""
    stacks: dict[str, dict[int, str]] = {}
    for path in parameters:
        if match := _NUMBERED.fullmatch(path):
            prefix, number, rest = match.groups()
            stacks.setdefault(f"{prefix or ''}blocks.*.{rest}", {})[int(number)] = path
    return {path: [of[n] for n in range(len(of))] for path, of in stacks.items()}


def _stack(order: Order | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    stacks = paths_of_stacks(parameters)
    in_blocks = {path for paths in stacks.values() for path in paths}
    result = {path: value for path, value in parameters.items() if path not in in_blocks}
    for path, paths in stacks.items():
        rows = range(len(paths)) if order is None else order
        result[path] = _stack_values([None if n is None else parameters[paths[n]] for n in rows])
    return result


def _stack_values(values: list[Any]) -> Any:
    like = next(value for value in values if value is not None)
    if isinstance(like, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(values), *like.shape), like.dtype)
    return jnp.stack([jnp.zeros_like(like) if value is None else value for value in values])


def _unstack(order: Order | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for path, value in parameters.items():
        match = _STACKED.fullmatch(path)
        if match is None:
            result[path] = value
            continue
        for row, number in enumerate(range(len(value)) if order is None else order):
            if number is not None:
                result[f"{match[1]}.{number}.{match[2]}"] = value[row]
    return result


def _map_dictionaries(function: Callable[[Mapping[str, Any]], dict[str, Any]], tree: Any) -> Any:
    def is_parameters(node: Any) -> bool:
        return isinstance(node, dict) and all(isinstance(key, str) for key in node)

    return jax.tree.map(
        lambda node: function(node) if is_parameters(node) else node, tree, is_leaf=is_parameters
    )
