"""Models whose sizes a mesh does not divide: zeros make parameters larger, and change no results.

A head or a feed-forward column that is all zeros adds nothing to what it is summed into. Neuron's
own libraries pad the same sizes (neuronx-distributed, `parallel_layers/pad.py`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from models.parameters import AxisNames, Parameters
from models.sharding import HEAD_AXES, RULES, axis_names

HEADS, KV_HEADS, WIDTH = "heads", "kv_heads", "hidden_dim"
PADDED = (HEADS, KV_HEADS, WIDTH)
"""Names of the axes that may be padded."""


def round_up(size: int, divisor: int) -> int:
    """The least multiple of the divisor that is no smaller than the size."""
    return -(-size // divisor) * divisor


def pad_heads(heads: int, kv_heads: int, mesh: Mapping[str, int]) -> tuple[int, int]:
    """The least numbers of query heads and of key-value heads that a mesh of these axes divides,
    with as many query heads for each key-value head as before."""
    model = mesh.get("model", 1)
    cores = math.prod(mesh.get(axis, 1) for axis in HEAD_AXES)
    groups = heads // kv_heads
    kv_heads = round_up(kv_heads, model)
    while kv_heads * groups % cores:
        kv_heads += model
    return kv_heads * groups, kv_heads


def pad_parameters(parameters: Parameters, names: AxisNames, mesh: Mapping[str, int]) -> Parameters:
    """The parameters as jax.ShapeDtypeStruct, with heads and feed-forward columns that a mesh of
    these axes divides."""
    sizes = dict(_attention_sizes(parameters, names, mesh))

    def padded(name: str, size: int) -> int:
        if name not in PADDED:
            return size
        cores = math.prod(mesh.get(axis, 1) for axis in RULES[name])
        return sizes.get((name, size)) or round_up(size, cores)

    return {
        path: jax.ShapeDtypeStruct(
            tuple(map(padded, axis_names(path, names), leaf.shape)), leaf.dtype
        )
        for path, leaf in parameters.items()
    }


def describe_padding(before: Parameters, after: Parameters, names: AxisNames) -> list[str]:
    """The sizes that differ, in words."""
    return sorted(
        {
            f"{name} padded from {old} to {new}"
            for path, leaf in before.items()
            for name, old, new in zip(
                axis_names(path, names), leaf.shape, after[path].shape, strict=True
            )
            if old != new
        }
    )


def _attention_sizes(
    parameters: Mapping[str, Any], names: AxisNames, mesh: Mapping[str, int]
) -> Iterator[tuple[tuple[str, int], int]]:
    """The padded sizes of the heads of every attention, by name and size."""
    for path, query in parameters.items():
        key = path.removesuffix("query.kernel") + "key.kernel"
        if not path.endswith(".query.kernel") or key not in parameters:
            continue
        own, others = axis_names(path, names), axis_names(key, names)
        if HEADS in own and KV_HEADS in others:
            heads = query.shape[own.index(HEADS)]
            kv_heads = parameters[key].shape[others.index(KV_HEADS)]
            padded, padded_kv = pad_heads(heads, kv_heads, mesh)
            yield (HEADS, heads), padded
            yield (KV_HEADS, kv_heads), padded_kv
