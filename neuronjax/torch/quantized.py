"""Modules whose weights only the kernels of a library for quantization can read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neuronjax.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

_LIBRARIES = (
    "auto_gptq",
    "awq",
    "bitsandbytes",
    "gptqmodel",
    "hqq",
    "optimum.quanto",
    "torch.ao.nn.quantized",
    "torchao",
)
"""Packages with modules or tensors of their own for packed weights."""


def check(module: torch.nn.Module) -> None:
    """ConfigurationError: a part of the module has packed weights; names it and the library."""
    for path, part in module.named_modules():
        for kind in (type(part), *_kinds(part)):
            if library := _library(kind):
                raise ConfigurationError(
                    f"{path or 'the module'} has a {kind.__name__} of {library}, packed weights "
                    "that have no meaning in JAX. Dequantize the model first (transformers: "
                    "model.dequantize()), or load it in bfloat16 without quantization_config."
                )


def _kinds(part: torch.nn.Module) -> Iterator[type]:
    """The types of a module's own parameters, and of what they wrap."""
    for weight in part.parameters(recurse=False):
        yield from (type(weight), type(weight.data))


def _library(kind: type) -> str:
    """The library for quantization that a type is of; empty if none."""
    return next((name for name in _LIBRARIES if f"{kind.__module__}.".startswith(f"{name}.")), "")
