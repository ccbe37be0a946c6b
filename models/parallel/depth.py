"""Parameters of blocks that are alike, stacked: `blocks.*.mlp.up.kernel` has those of all blocks
along its first axis."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

_NUMBERED = re.compile(r"(.*\.)?blocks\.(\d+)\.(.+)")
_STACKED = re.compile(r"((?:.*\.)?blocks)\.\*\.(.+)")


def stack(tree: Any) -> Any:
    """Every dictionary by parameter paths in the tree, with the parameters of blocks stacked."""
    return _map_dictionaries(_stack, tree)


def unstack(tree: Any) -> Any:
    """The inverse of `stack`."""
    return _map_dictionaries(_unstack, tree)


def _stack(parameters: Mapping[str, Any]) -> dict[str, Any]:
    stacks: dict[str, dict[int, Any]] = {}
    result = {}
    for path, value in parameters.items():
        match = _NUMBERED.fullmatch(path)
        if match is None:
            result[path] = value
        else:
            prefix, number, rest = match.groups()
            stacks.setdefault(f"{prefix or ''}blocks.*.{rest}", {})[int(number)] = value
    for path, values in stacks.items():
        result[path] = _stacked([values[number] for number in range(len(values))])
    return result


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(values), *values[0].shape), values[0].dtype)
    return jnp.stack(values)


def _unstack(parameters: Mapping[str, Any]) -> dict[str, Any]:
    result = {}
    for path, value in parameters.items():
        match = _STACKED.fullmatch(path)
        if match is None:
            result[path] = value
            continue
        for number in range(len(value)):
            result[f"{match[1]}.{number}.{match[2]}"] = value[number]
    return result


def _map_dictionaries(function: Callable[[Mapping[str, Any]], dict[str, Any]], tree: Any) -> Any:
    def is_parameters(node: Any) -> bool:
        return isinstance(node, dict) and all(isinstance(key, str) for key in node)

    return jax.tree.map(
        lambda node: function(node) if is_parameters(node) else node, tree, is_leaf=is_parameters
    )
