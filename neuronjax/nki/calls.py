"""Calls of kernels: which arguments are tensors, and which are known when the kernel is traced."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neuronjax.errors import KernelError
from neuronjax.nki.arrays import Array, Restore, is_array, without_torch
from neuronjax.nki.refusal import misfit
from neuronjax.nki.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a call. Arrays, also within tuples, lists and dicts, become tensors in HBM;
    everything else reaches the kernel as it is."""

    bound: inspect.BoundArguments
    leaves: tuple[Any, ...]
    structure: jax.tree_util.PyTreeDef
    #: For every leaf, the parameter and where in it, such as `caches[0]`.
    places: tuple[str, ...]
    #: What makes a tensor of torch of an array, if it was called with such tensors.
    to_torch: Restore | None = None

    def results(self, arrays: Any) -> Any:
        """A tree of results, as tensors of torch where the arguments were."""
        return arrays if self.to_torch is None else jax.tree.map(self.to_torch, arrays)

    @property
    def arrays(self) -> list[Array]:
        """The arrays, in the order of the parameters."""
        return [leaf for leaf in self.leaves if is_array(leaf)]

    @property
    def scalars(self) -> list[str]:
        """The parameters of arrays without dimensions, which `jax.jit` makes of numbers."""
        pairs = zip(self.places, self.leaves, strict=True)
        return [place for place, leaf in pairs if is_array(leaf) and not leaf.shape]

    def place_of(self, position: int) -> str:
        """The parameter of an array, by its position among the arrays."""
        pairs = zip(self.places, self.leaves, strict=True)
        return [place for place, leaf in pairs if is_array(leaf)][position]

    def of_rank(self, rank: int) -> Call:
        """The call of one rank, where arrays have one of each along their first dimension."""
        leaves = tuple(leaf[rank, ...] if is_array(leaf) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, leaves=leaves)

    def replaced(
        self, tensors: Sequence[Tensor]
    ) -> tuple[tuple[object, ...], Mapping[str, object]]:
        """Positional and keyword arguments, with `tensors` in place of the arrays."""
        rest = iter(tensors)
        leaves = [next(rest) if is_array(leaf) else leaf for leaf in self.leaves]
        values = jax.tree.unflatten(self.structure, leaves)
        arguments = dict(zip(self.bound.arguments, values, strict=True))
        full = inspect.BoundArguments(self.bound.signature, arguments)
        return full.args, full.kwargs


def line_of(function: Callable[..., object]) -> str:
    """``file:line`` where a kernel begins."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def call(
    function: Callable[..., object], positional: Sequence[object], keywords: Mapping[str, object]
) -> Call:
    """The call of `function`; ``KernelError`` if its parameters are others, or no array has the
    memory of a device."""
    signature = inspect.signature(function)
    wrong = misfit(signature, positional, keywords)
    if wrong is not None:
        raise KernelError(f"{line_of(function)}: {function.__name__}{signature}: {wrong}")
    bound = signature.bind(*positional, **keywords)
    values = list(bound.arguments.values())
    try:
        paths, structure = jax.tree_util.tree_flatten_with_path(values)
    except (TypeError, ValueError) as error:
        raise KernelError(
            f"{line_of(function)}: the arguments of {function.__name__} are no tuples, lists and "
            f"dicts of arrays: {error}"
        ) from None
    names = list(bound.arguments)
    places = tuple(names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths)
    arrays, to_torch = without_torch([leaf for _, leaf in paths])
    return Call(bound, arrays, structure, places, to_torch)
