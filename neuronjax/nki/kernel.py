"""Kernels: functions that are traced with the shapes of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neuronjax.emulate import core
from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.nki.compilation import KERNEL_CHIPS, Compiled, compiled
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.trace import is_tracing
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline

__all__ = ["KERNEL_CHIPS", "Kernel", "benchmark", "jit", "simulate"]


@dataclass(frozen=True)
class Kernel:
    """A function marked by `jit`."""

    function: Callable[..., Any]

    def __call__(self, *arrays: Any) -> Any:
        """Its results for JAX arrays, within `jax.jit` or not: the emulator computes them when the
        program runs. Within another kernel it is a function like any other.

        Raises as `trace` does.
        """
        if is_tracing():
            return self.function(*arrays)
        traced = self.trace(*arrays)
        results = jax.tree.map(
            lambda tensor: jax.ShapeDtypeStruct(tensor.shape, numpy_dtype(tensor.dtype)),
            traced.returned,
            is_leaf=lambda value: isinstance(value, Tensor),
        )
        return jax.pure_callback(
            lambda *values: traced.run([np.asarray(value) for value in values]),
            results,
            *arrays,
            vmap_method="sequential",
        )

    def trace(self, *arrays: Any, chip: str = "trainium2") -> Compiled:
        """The program for arguments of those shapes and dtypes, and the tensors it returns.

        Raises:
          UnsupportedProgramError: the kernel returns something that is no tensor in HBM, or uses
            what is not built.
          KernelError: an argument is no array, or the chip would refuse an instruction.
          SbufOverflowError, PsumOverflowError: its tiles do not fit.
        """
        return compiled(self.function, arrays, chip)


def jit(function: Callable[..., Any]) -> Kernel:
    """Marks a function as a kernel."""
    return Kernel(function)


def simulate(
    kernel: Kernel, order: core.Order | None = None, chip: str = "trainium2"
) -> Callable[..., Any]:
    """The kernel as a function of numpy arrays, run by the emulator in `order`."""
    return lambda *arrays: kernel.trace(*arrays, chip=chip).run(arrays, order)


def benchmark(kernel: Kernel, chip: str = "trainium2") -> Callable[..., Timeline]:
    """The kernel as a function of numpy arrays, of which only shapes and dtypes count, that returns
    its time on the chip, without values."""
    return lambda *arrays: schedule(kernel.trace(*arrays, chip=chip).program)
