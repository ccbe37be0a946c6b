"""A model with narrow kernels, made of one with wide ones."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from launch.errors import SettingsError
from launch.quantisation.calibration import Seen
from launch.quantisation.encoding import encode
from launch.quantisation.settings import QuantisationSettings
from models.errors import ConfigError
from models.layers.narrow import LARGEST, HasNarrow, Storage, narrow_name, pack
from models.parameters import Parameters, merge
from models.pretrained import Described, Pretrained, abstract_narrow
from models.weights.fields import Fields
from models.weights.narrow import describe_storage
from models.weights.plan import writing_plan

CACHE_DTYPE = "float8_e4m3"
"""What the scales of the cache are made for."""


class Kernel(NamedTuple):
    """A kernel that can be narrow."""

    path: str
    layer: str  # its name in checkpoints
    in_axes: int  # that are contracted
    stacked: bool  # whether its first axis counts kernels


def kernels(model: Pretrained) -> list[Kernel]:
    """All kernels of the model that can be narrow."""
    names = dict(_layers(model))
    module = nnx.eval_shape(lambda: merge(model.graph, _zeros(model.parameters)))
    return [
        Kernel(path, names[path], *how)
        for owner, part in nnx.iter_modules(module)
        if isinstance(part, HasNarrow)
        for name, how in part.narrow_kernels().items()
        for path in [".".join(map(str, (*owner, name)))]
    ]


def choose(
    every: Sequence[Kernel], storage: Storage, ignored: Sequence[str], parameters: Parameters
) -> tuple[list[Kernel], dict[str, str]]:
    """The kernels to make narrow, and why others stay as they are, by layer.

    Raises SettingsError if `ignored` names a layer that there is not.
    """
    for entry in ignored:
        if not any(_matches(entry, kernel.layer) for kernel in every):
            some = ", ".join(kernel.layer for kernel in every[:4])
            raise SettingsError(f"--ignore={entry} matches no layer; the layers include {some}, …")
    chosen, left = [], {}
    for kernel in every:
        if any(_matches(entry, kernel.layer) for entry in ignored):
            left[kernel.layer] = "ignored"
            continue
        try:
            storage.scale_shape(*_flat(kernel, parameters[kernel.path].shape))
        except ConfigError as error:
            left[kernel.layer] = str(error)
            continue
        chosen.append(kernel)
    return chosen, left


def quantise(
    model: Pretrained,
    settings: QuantisationSettings,
    chosen: Sequence[Kernel],
    left: Sequence[str],
    seen: Seen,
) -> Pretrained:
    """The model with the chosen kernels narrow; `left` are the names of the other layers."""
    storage = settings.storage
    described = Described(model.architecture, model.config, model.fields)
    paths = {kernel.path for kernel in chosen}
    graph, shapes = abstract_narrow(
        described, storage, paths, cache_scales=settings.kv_cache_scales
    )
    values = dict(model.parameters)
    for kernel in chosen:
        wide = np.asarray(values.pop(kernel.path)).astype(np.float32)
        importance = None
        if settings.observer == "mse":
            mean_squares = seen.inputs.get(kernel.path.rpartition(".")[0])
            importance = (
                np.ones(_flat(kernel, wide.shape)[0]) if mean_squares is None else mean_squares
            )
        values |= _narrow(kernel, wide, storage, importance)
    if settings.kv_cache_scales:
        values |= _cache_scales(seen)
    fields = describe_storage(storage, ["lm_head", *left], kv_cache=settings.kv_cache_scales)
    return model._replace(
        graph=graph,
        fields=Fields({**model.fields.values, **fields}, model.fields.where),
        parameters={name: jax.numpy.asarray(values[name]) for name in shapes},
    )


def as_reference(model: Pretrained, dtype: str) -> Pretrained:
    """The model as it would run without quantisation: everything in `dtype`."""
    config = replace(model.config, dtype=dtype, param_dtype=dtype)
    graph, _ = model.architecture.abstract(config)
    parameters = {name: value.astype(dtype) for name, value in model.parameters.items()}
    return model._replace(config=config, graph=graph, parameters=parameters)


def _narrow(
    kernel: Kernel, wide: np.ndarray, storage: Storage, importance: np.ndarray | None
) -> dict[str, np.ndarray]:
    """The parameters that take the place of a kernel."""
    copies = wide if kernel.stacked else wide[None]
    shape = copies.shape[1:]
    flat = _flat(kernel, wide.shape)
    weights = None if importance is None else importance.reshape(-1)
    pairs = [encode(copy.reshape(flat), storage, weights) for copy in copies]
    scales = [scale for _, scale in pairs]
    name = narrow_name(kernel.path)
    if storage.is_packed:
        packed = [pack(numbers, 1).reshape(-1, *shape[kernel.in_axes :]) for numbers, _ in pairs]
        held = {f"{name}.packed": packed, f"{name}.scale": scales}
    else:
        held = {kernel.path: [n.reshape(shape) for n, _ in pairs], f"{name}.scale": scales}
    return {
        path: np.stack(arrays) if kernel.stacked else arrays[0] for path, arrays in held.items()
    }


def _cache_scales(seen: Seen) -> dict[str, np.ndarray]:
    scales = {}
    for path, largest in seen.caches.items():
        for name, value in zip(("key", "value"), largest, strict=True):
            scale = np.float32(value) / LARGEST[CACHE_DTYPE]
            scales[f"{path}.cache_scales.{name}"] = np.full(1, scale or 1, np.float32)
    return scales


def _matches(entry: str, layer: str) -> bool:
    if entry.startswith("re:"):
        return re.fullmatch(entry.removeprefix("re:"), layer) is not None
    return entry in (layer, layer.rpartition(".")[2])


def _layers(model: Pretrained) -> Iterator[tuple[str, str]]:
    """(path of a kernel, the name of the layer in checkpoints)."""
    shapes = {name: tuple(value.shape) for name, value in model.parameters.items()}
    for group in writing_plan(model.architecture.keys(model.config), shapes):
        for parameter in group.parameters:
            yield parameter, group.tensors[0][0].removesuffix(".weight")


def _flat(kernel: Kernel, shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of a kernel."""
    axes = shape[1 if kernel.stacked else 0 :]
    return prod(axes[: kernel.in_axes]), prod(axes[kernel.in_axes :])


def _zeros(parameters: Mapping[str, Any]) -> Parameters:
    return {
        name: jax.numpy.zeros(parameter.shape, parameter.dtype)
        for name, parameter in parameters.items()
    }
