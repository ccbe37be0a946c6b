"""NKI 0.x, the dialect of `neuronxcc.nki` up to SDK 2.26, traced to the present instructions.

`import neuronxcc.nki` finds these modules. Tensors have block dimensions and are placed by their
lives, indices are expressions of `nl.arange` and `nl.mgrid`, instructions take a `mask` and return
tiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from neuronjax.errors import KernelError, did_you_mean
from neuronjax.nki.kernel import simulate
from neuronjax.nki.legacy import compiler, isa, language, typing
from neuronjax.nki.legacy.kernel import LegacyKernel, mark_kernel
from neuronjax.nki.legacy.measures import baremetal, benchmark, profile

__all__ = [
    "LegacyKernel", "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile",
    "simulate_kernel", "tensor", "trace", "typing",
]  # fmt: skip

tensor = typing.tensor

_MODES = ("auto", "jax", "torch", "trace", "simulation", "baremetal", "benchmark", "profile")


def jit(
    function: Callable[..., object] | None = None,
    mode: str = "auto",
    *,
    platform_target: str | None = None,
    **options: Any,
) -> Any:
    """Marks a function as a kernel, as `@nki.jit` or `@nki.jit(mode=…)`; options of the Neuron
    compiler have no effect. `mode` says what a call with arrays does.

    KernelError: there is no such mode.
    """
    if function is None:
        return functools.partial(jit, mode=mode, platform_target=platform_target, **options)
    if mode not in _MODES:
        raise KernelError(f"nki.jit has no mode {mode!r}.{did_you_mean(mode, _MODES)}")
    if mode == "benchmark":
        return benchmark(function)
    if mode == "profile":
        return profile(function)
    return mark_kernel(function, mode, platform_target)


def trace(function: Callable[..., object] | None = None, **options: object) -> Any:
    """Marks a function as a kernel."""
    return jit if function is None else jit(function)


def simulate_kernel(kernel: Callable[..., object], *arguments: object, **keywords: object) -> Any:
    """The results of a kernel for arrays of numpy, by the emulator."""
    return simulate(mark_kernel(kernel) if not isinstance(kernel, LegacyKernel) else kernel)(
        *arguments, **keywords
    )
