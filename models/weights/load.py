"""Parameters from files, each read straight into its sharding.

Host memory holds the model and one tensor: arrays are made one by one, each from views of the
files that are dropped at once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from models.errors import WeightsError
from models.parameters import Parameters
from models.weights.copying import gathered
from models.weights.plan import Group, reading_plan, stored_shapes
from models.weights.safetensors import StoredTensor
from models.weights.table import KeyTable
from models.weights.transforms import Shape

Index = tuple[slice, ...]
OnTensor = Callable[[int], None]  # called with the bytes of every tensor that has been read


def load_parameters(
    tensors: Mapping[str, StoredTensor],
    table: KeyTable,
    parameters: Parameters,
    shardings: Mapping[str, Sharding],
    on_tensor: OnTensor | None = None,
) -> Parameters:
    """The parameters, given as anything with shape and dtype, with the values of the files.

    Raises WeightsError if a tensor is missing, unknown, or of a wrong shape or kind: everything is
    checked before anything is read.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    groups = [
        Group(group.row, group.parameters, tuple(_stored(tensors, keys) for keys in group.tensors))
        for group in reading_plan(table, list(tensors), shapes)
    ]
    for group in groups:
        _check(group, parameters, shapes)
    loaded = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for group in groups:
            for which, name in enumerate(group.parameters):
                shape, dtype = shapes[name], np.dtype(parameters[name].dtype)
                loaded[name] = _make(group, which, shapes, dtype, shardings[name], pool)
                if on_tensor is not None:
                    on_tensor(prod(shape) * dtype.itemsize)
    return {name: loaded[name] for name in parameters}


def _stored(tensors: Mapping[str, StoredTensor], keys: Sequence[str]) -> tuple[StoredTensor, ...]:
    return tuple(tensors[key] for key in keys)


def _check(group: Group[StoredTensor], parameters: Parameters, shapes: Mapping[str, Shape]) -> None:
    expected = stored_shapes(group, shapes)
    wanted = np.dtype(parameters[group.parameters[0]].dtype)
    for place in group.tensors:
        for tensor, shape in zip(place, expected, strict=True):
            if tensor.shape != shape:
                raise WeightsError(
                    f"tensor {tensor.name!r} of {tensor.file} has the shape {list(tensor.shape)}, "
                    f"but {', '.join(group.parameters)} of this config needs {list(shape)}. Check "
                    "that config.json and the weights belong together."
                )
            if _is_float(tensor.dtype) != _is_float(wanted):
                raise WeightsError(
                    f"tensor {tensor.name!r} of {tensor.file} holds {tensor.dtype}, but "
                    f"{', '.join(group.parameters)} needs {wanted}. Quantised checkpoints are not "
                    "supported: use the original weights."
                )


def _is_float(dtype: np.dtype[Any]) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _make(
    group: Group[StoredTensor],
    which: int,
    shapes: Mapping[str, Shape],
    dtype: np.dtype[Any],
    sharding: Sharding,
    pool: Executor,
) -> jax.Array:
    """Parameter number `which` of the group, on its devices."""
    skip = 1 if group.is_stacked else 0
    part_shapes = [shapes[name][skip:] for name in group.parameters]
    name = group.parameters[which]

    def part(place: int) -> np.ndarray:
        views = [tensor.view() for tensor in group.tensors[place]]
        return group.row.transform.split(views, part_shapes)[which]

    def read(index: Index) -> np.ndarray:
        shape = [len(range(size)[piece]) for size, piece in zip(shapes[name], index, strict=True)]
        if not group.is_stacked:
            return gathered([part(0)[index]], shape, dtype, pool)
        places = range(len(group.tensors))[index[0]]
        return gathered([part(place)[index[1:]] for place in places], shape, dtype, pool)

    array = jax.make_array_from_callback(shapes[name], sharding, read)
    # Transfers are asynchronous: without waiting, many tensors' pages would be held at once.
    return array.block_until_ready()
