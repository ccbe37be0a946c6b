"""Parameters from files, each read straight into its sharding.

Host memory holds the model and at most THREADS tensors: arrays are made from views of the files
that are dropped at once.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from models.errors import WeightsError
from models.parameters import Parameters
from models.weights.copying import Index, make_array, stacked
from models.weights.plan import Group, reading_plan, stored_shapes
from models.weights.safetensors import WRITTEN_AS, StoredTensor
from models.weights.table import KeyTable
from models.weights.transforms import Shape

OnTensor = Callable[[int], None]  # called with the bytes of every tensor that has been read

THREADS = 4  # that copy at a time: more hold more tensors, and memory is not faster


def load_parameters(
    tensors: Mapping[str, StoredTensor],
    table: KeyTable,
    parameters: Parameters,
    shardings: Mapping[str, Sharding],
    on_tensor: OnTensor | None = None,
    *,
    padded: Parameters | None = None,
) -> Parameters:
    """The parameters, given as anything with shape and dtype, with the values of the files. With
    `padded`, in the same form, zeros stand behind them.

    Raises WeightsError if a tensor is missing, unknown, or of a wrong shape or kind: everything is
    checked before anything is read.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    groups = [
        Group(group.row, group.parameters, tuple(_select(tensors, keys) for keys in group.tensors))
        for group in reading_plan(table, list(tensors), shapes, _where(tensors))
    ]
    for group in groups:
        _check(group, parameters, shapes)
    wanted = [(group, name) for group in groups for name in group.parameters]
    # The largest first: at the end, when the model is in memory, views of files are small.
    wanted.sort(key=lambda pair: -prod(shapes[pair[1]]))
    larger = {name: tuple(leaf.shape) for name, leaf in (padded or parameters).items()}
    make = partial(_make, parameters=parameters, shapes=shapes, padded=larger, shardings=shardings)
    loaded = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for array, (_, name) in zip(
            pool.map(lambda arguments: make(*arguments), wanted), wanted, strict=True
        ):
            loaded[name] = array
            if on_tensor is not None:
                on_tensor(array.nbytes)
    return {name: loaded[name] for name in parameters}


def _where(tensors: Mapping[str, StoredTensor]) -> str:
    """The file of the tensors, or the directory if there are several."""
    files = {tensor.file for tensor in tensors.values()}
    if len(files) == 1:
        return str(files.pop())
    return str(files.pop().parent) if files else "an empty file"


def _select(tensors: Mapping[str, StoredTensor], keys: Sequence[str]) -> tuple[StoredTensor, ...]:
    return tuple(tensors[key] for key in keys)


def _check(group: Group[StoredTensor], parameters: Parameters, shapes: Mapping[str, Shape]) -> None:
    expected = stored_shapes(group, shapes)
    wanted = np.dtype(parameters[group.parameters[0]].dtype)
    for place in group.tensors:
        for tensor, shape in zip(place, expected, strict=True):
            if tensor.shape != shape:
                raise WeightsError(
                    f"tensor {tensor.name!r} in {tensor.file} has the shape {list(tensor.shape)}, "
                    f"but {', '.join(group.parameters)} needs {list(shape)} with this config. "
                    "Check that config.json and the weights belong together."
                )
            if not _converts(tensor.dtype, wanted):
                raise WeightsError(
                    f"tensor {tensor.name!r} in {tensor.file} has the dtype {tensor.dtype}, but "
                    f"{', '.join(group.parameters)} needs {wanted}. Check quantization_config in "
                    "config.json, or use the original weights."
                )


def _converts(stored: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether numbers of a file may be held in another type: narrow ones must stay what they
    are."""
    is_narrow = [dtype.itemsize == 1 or dtype.kind in "iu" for dtype in (stored, wanted)]
    if any(is_narrow):
        return stored == WRITTEN_AS.get(wanted, wanted)
    return bool(jnp.issubdtype(stored, jnp.floating) and jnp.issubdtype(wanted, jnp.floating))


def _make(
    group: Group[StoredTensor],
    name: str,
    *,
    parameters: Parameters,
    shapes: Mapping[str, Shape],
    padded: Mapping[str, Shape],
    shardings: Mapping[str, Sharding],
) -> jax.Array:
    """Makes one of the group's parameters on its devices."""
    shape, dtype, sharding = padded[name], np.dtype(parameters[name].dtype), shardings[name]
    skip = 1 if group.is_stacked else 0
    part_shapes = [shapes[parameter][skip:] for parameter in group.parameters]
    which = group.parameters.index(name)

    def part(place: int) -> np.ndarray:
        views = [tensor.view() for tensor in group.tensors[place]]
        return group.row.transform.split(views, part_shapes)[which]

    whole = None if group.is_stacked else part(0)  # mapped once for all devices

    def read(index: Index) -> np.ndarray:
        if whole is not None:
            return whole[index]
        places = range(len(group.tensors))[index[0]]
        return stacked([part(place)[index[1:]] for place in places])

    def padded_part(index: Index) -> np.ndarray:
        return _fill(read(index), index, shape)

    return make_array(shape, dtype, sharding, padded_part, copies=group.is_stacked)


def _fill(values: np.ndarray, index: Index, shape: Shape) -> np.ndarray:
    """A part of a parameter of that shape, with zeros where its values end earlier."""
    sizes = [len(range(size)[part]) for part, size in zip(index, shape, strict=True)]
    missing = [size - there for size, there in zip(sizes, values.shape, strict=True)]
    return np.pad(values, [(0, size) for size in missing]) if any(missing) else values
