"""Calls of kernels: which arguments are tensors, and which are known when the kernel is traced."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neuronjax.errors import KernelError


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a call. Arrays, also within tuples, lists and dicts, become tensors in HBM;
    everything else reaches the kernel as it is."""

    bound: inspect.BoundArguments
    leaves: tuple[Any, ...]
    structure: Any
    #: For every leaf, the parameter and where in it, such as `caches[0]`.
    places: tuple[str, ...]

    @property
    def arrays(self) -> list[Any]:
        """The arrays, in the order of the parameters."""
        return [leaf for leaf in self.leaves if is_array(leaf)]

    def of_rank(self, rank: int) -> Call:
        """The call of one rank, where arrays have one of each along their first dimension."""
        leaves = tuple(leaf[rank, ...] if is_array(leaf) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, leaves=leaves)

    def replaced(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Positional and keyword arguments, with `tensors` in place of the arrays."""
        rest = iter(tensors)
        leaves = [next(rest) if is_array(leaf) else leaf for leaf in self.leaves]
        values = jax.tree.unflatten(self.structure, leaves)
        arguments = dict(zip(self.bound.arguments, values, strict=True))
        full = inspect.BoundArguments(self.bound.signature, arguments)
        return full.args, full.kwargs


def is_array(value: Any) -> bool:
    """Whether an argument is an array, of numpy or JAX; scalars of numpy are numbers."""
    return (
        hasattr(value, "dtype")
        and hasattr(value, "shape")
        and not isinstance(value, type | np.generic)
    )


def call(
    function: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any]
) -> Call:
    """The call of `function`; ``KernelError`` if its parameters are others."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*positional, **keywords)
    except TypeError as error:
        raise KernelError(f"{function.__name__}{signature}: {error}.") from None
    values = list(bound.arguments.values())
    paths, structure = jax.tree_util.tree_flatten_with_path(values)
    names = list(bound.arguments)
    places = tuple(names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths)
    return Call(bound, tuple(leaf for _, leaf in paths), structure, places)
