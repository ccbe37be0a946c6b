"""Tensors of PyTorch as arrays of JAX, and the trees that hold them."""

from __future__ import annotations

import collections
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torchax.ops import mappings

from neuronjax.errors import ArgumentMismatchError
from neuronjax.torch.distributed import sharding_of, whole

_HERE = ("cpu", "meta")
_CACHES = {"Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin"}
"""Bases in ``transformers.cache_utils`` of objects that hold tensors in attributes."""
_BITS = {1: torch.uint8, 2: torch.uint16}
"""Integers of the sizes, in bytes, of floats that NumPy does not have."""


def is_array(leaf: object) -> bool:
    """Whether a leaf of a tree is a tensor, an array, or the type of one."""
    return isinstance(leaf, torch.Tensor | jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The type of a tensor or an array as JAX has it: 64 bits only if JAX is told to use them.

    That of a DTensor says how it is split.
    """
    dtype = leaf.dtype
    sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
    if isinstance(leaf, torch.Tensor):
        _check(leaf)
        dtype, sharding = mappings.t2j_dtype(dtype), sharding_of(leaf)
    canonical = jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
    return jax.ShapeDtypeStruct(tuple(leaf.shape), canonical, sharding=sharding)


def array(leaf: Any) -> jax.Array | jax.ShapeDtypeStruct:
    """A copy of a tensor as an array; on ``meta``, its type."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    # Of an array of NumPy, `cpu` may use the memory, which the tensor goes on to have.
    return type_of(leaf) if leaf.is_meta else jax.device_put(numpy_of(leaf).copy())


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    """A view of a tensor of the host, or a copy where its strides are not NumPy's."""
    _check(tensor)
    dense = whole(tensor.detach()).to_dense().resolve_conj().resolve_neg()
    try:
        return dense.numpy()
    except TypeError:
        bits = dense.contiguous().view(_BITS[dense.element_size()])
        return bits.numpy().view(mappings.t2j_dtype(tensor.dtype))


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type not in _HERE:
        raise ArgumentMismatchError(
            f"a tensor of shape {list(tensor.shape)} lies on {tensor.device}; move the module and "
            'its inputs with .to("cpu") first, or .to("meta") if only estimates are wanted.'
        )
    if tensor.dtype not in mappings.TORCH_DTYPE_TO_JAX:
        raise ArgumentMismatchError(
            f"a tensor of shape {list(tensor.shape)} has the type {tensor.dtype}, which JAX does "
            "not have; dequantize the module, or convert it with .to(torch.bfloat16)."
        )


def differences(given: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    """Inputs whose shapes or types are not those of the example, in words."""
    said = []
    for name in given.keys() & example.keys():
        pairs = zip(flatten(given[name])[0], flatten(example[name])[0], strict=False)
        said += [
            f"{name} of {_shown(mine)} (in the example: {_shown(theirs)})"
            for mine, theirs in pairs
            if is_array(mine) and is_array(theirs) and _shown(mine) != _shown(theirs)
        ]
    return " and ".join(sorted(said))


def _shown(leaf: Any) -> str:
    known = type_of(leaf)
    return f"{known.dtype}{list(known.shape)}"


def types(tree: Any) -> Any:
    """A tree with the types of tensors and arrays in their place."""
    leaves, structure = flatten(tree)
    return structure.unflatten([type_of(leaf) if is_array(leaf) else leaf for leaf in leaves])


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, ``None`` among them, and its structure.

    Outputs and caches of transformers and diffusers become nodes of JAX's trees on the way.
    """
    register(tree)
    return jax.tree.flatten(tree, is_leaf=lambda node: node is None)


def register(tree: Any) -> None:
    """Tells JAX how to flatten the types in a tree that it does not know yet."""
    for leaf in jax.tree.leaves(tree):
        kind = type(leaf)
        if isinstance(leaf, collections.OrderedDict):
            _register_mapping(kind)
        elif kind.__module__ == "torch.return_types":
            jax.tree_util.register_pytree_node(kind, _parts, functools.partial(_sequence, kind))
        elif _CACHES & {
            base.__name__ for base in kind.__mro__ if "transformers" in base.__module__
        }:
            _register_attributes(kind)
        else:
            continue
        register(tree)
        return


def _register_mapping(kind: type[Any]) -> None:
    """A ``ModelOutput``, and the like: a dict whose keys are attributes too."""

    def flattened(value: Any) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [(jax.tree_util.GetAttrKey(key), part) for key, part in value.items()], tuple(value)

    def unflattened(keys: tuple[str, ...], parts: Any) -> Any:
        return kind(**dict(zip(keys, parts, strict=True)))

    jax.tree_util.register_pytree_with_keys(kind, flattened, unflattened)


def _parts(value: Any) -> tuple[tuple[Any, ...], None]:
    return tuple(value), None


def _sequence(kind: type[Any], _: None, parts: Any) -> Any:
    """A named tuple of torch, such as the values and indices of ``topk``."""
    return kind(tuple(parts))


@dataclass(frozen=True)
class _Rest:
    """The attributes of an object that hold no tensors."""

    attributes: dict[str, Any]

    def __hash__(self) -> int:
        return hash(tuple(self.attributes))


def _register_attributes(kind: type[Any]) -> None:
    """An object whose tensors are attributes, or in lists that are attributes."""

    def flattened(value: Any) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, ...], _Rest]]:
        attributes = vars(value)
        held = {name: part for name, part in attributes.items() if _holds_arrays(part)}
        rest = {name: part for name, part in attributes.items() if name not in held}
        parts = [(jax.tree_util.GetAttrKey(name), part) for name, part in held.items()]
        return parts, (tuple(held), _Rest(rest))

    def unflattened(known: tuple[tuple[str, ...], _Rest], parts: Any) -> Any:
        names, rest = known
        made = object.__new__(kind)
        vars(made).update(rest.attributes)
        vars(made).update(zip(names, parts, strict=True))
        return made

    jax.tree_util.register_pytree_with_keys(kind, flattened, unflattened)


def _holds_arrays(part: Any) -> bool:
    """Whether an attribute belongs to the tree: arrays, what JAX puts for them, lists of them."""
    register(part)
    return not all(isinstance(leaf, _PLAIN) or callable(leaf) for leaf in jax.tree.leaves(part))


_PLAIN = (bool, int, float, str, torch.dtype, torch.device)
