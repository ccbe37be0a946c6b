"""Parameters to files, tensor by tensor; nothing is ever overwritten."""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from models.errors import WeightsError
from models.parameters import Parameters
from models.weights.directory import STEMS
from models.weights.fields import CONFIG_FILE
from models.weights.plan import Group, stored_shapes, writing_plan
from models.weights.safetensors import WRITTEN_AS, PlannedTensor, write_file
from models.weights.table import KeyTable

SHARD_BYTES = 5_000_000_000  # of one file, as transformers


def save_checkpoint(
    directory: Path,
    fields: Mapping[str, Any],
    table: KeyTable,
    parameters: Parameters,
    *,
    shard_bytes: int = SHARD_BYTES,
    stem: str = STEMS["transformers"],
) -> None:
    """Writes config.json and the weights into a directory, which is made if need be.

    One file `<stem>.safetensors`, or several of at most `shard_bytes` (or one tensor) each and
    their index. Host memory holds one tensor besides the model. Raises WeightsError if any of the
    files exists already or cannot be written.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    shards = _shards(writing_plan(table, shapes), parameters, shard_bytes)
    names = [_file_name(stem, i, len(shards)) for i in range(len(shards))]
    index = f"{stem}.safetensors.index.json"
    texts = {CONFIG_FILE: json.dumps(fields, indent=2, sort_keys=True) + "\n"}
    if len(shards) > 1:
        texts[index] = json.dumps(_index(shards, names, shapes, parameters), indent=2) + "\n"
    _prepare(directory, stem, [*names, CONFIG_FILE, index])
    for name, groups in zip(names, shards, strict=True):
        plan = [tensor for group in groups for tensor in _plan_group(group, shapes, parameters)]
        write_file(directory / name, plan, _arrays(groups, parameters))
    for name, text in texts.items():
        (directory / name).write_text(text)


def _prepare(directory: Path, stem: str, names: list[str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WeightsError(f"cannot create {directory}: {error.strerror}") from error
    taken = sorted(
        file.name
        for file in directory.iterdir()
        if file.name in names or (file.name.startswith(stem) and file.suffix == ".safetensors")
    )
    if taken:
        raise WeightsError(
            f"{directory} already holds {', '.join(taken)}, and nothing is overwritten. Give "
            "another directory."
        )


def _file_name(stem: str, number: int, count: int) -> str:
    if count == 1:
        return f"{stem}.safetensors"
    return f"{stem}-{number + 1:05d}-of-{count:05d}.safetensors"


def _shards(
    groups: list[Group[str]], parameters: Parameters, shard_bytes: int
) -> list[list[Group[str]]]:
    """The groups, in order, filled into files."""
    shards: list[list[Group[str]]] = [[]]
    room = shard_bytes
    for group in groups:
        size = sum(_nbytes(parameters[name]) for name in group.parameters)
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(group)
        room -= size
    return shards


def _nbytes(parameter: Any) -> int:
    return prod(parameter.shape) * np.dtype(parameter.dtype).itemsize


def _plan_group(
    group: Group[str], shapes: Mapping[str, tuple[int, ...]], parameters: Parameters
) -> list[PlannedTensor]:
    dtype = np.dtype(parameters[group.parameters[0]].dtype)
    dtype = WRITTEN_AS.get(dtype, dtype)
    stored = stored_shapes(group, shapes)
    return [
        PlannedTensor(key, dtype, shape)
        for place in group.tensors
        for key, shape in zip(place, stored, strict=True)
    ]


def _index(
    shards: list[list[Group[str]]],
    names: list[str],
    shapes: Mapping[str, tuple[int, ...]],
    parameters: Parameters,
) -> dict[str, Any]:
    places = {
        tensor.name: name
        for name, groups in zip(names, shards, strict=True)
        for group in groups
        for tensor in _plan_group(group, shapes, parameters)
    }
    total = sum(_nbytes(parameter) for parameter in parameters.values())
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}


def _arrays(groups: list[Group[str]], parameters: Parameters) -> Iterator[np.ndarray]:
    """The tensors of the groups, in the order of the plan."""
    for group in groups:
        values = [parameters[name] for name in group.parameters]
        if not group.is_stacked:
            yield from group.row.transform.join([_on_host(value) for value in values])
            continue
        for place in range(len(group.tensors)):
            yield from group.row.transform.join([_on_host(value[place]) for value in values])


def _on_host(value: Any) -> np.ndarray:
    array = np.asarray(jax.device_get(value))
    return array.astype(WRITTEN_AS.get(array.dtype, array.dtype), copy=False)
