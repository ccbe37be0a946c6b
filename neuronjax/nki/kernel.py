"""Kernels: functions that are traced with the shapes of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.emulate import core
from neuronjax.errors import UnsupportedProgramError
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.nki.trace import Tensor, Trace, ended, tracing, whole
from neuronjax.program import program
from neuronjax.program.element_types import element_type_named
from neuronjax.program.operand import Kind, Memory


@dataclass(frozen=True)
class Kernel:
    """A function marked by `jit`."""

    function: Callable[..., Any]

    def trace(self, *arrays: np.ndarray, chip: str = "trainium2") -> tuple[program.Program, Any]:
        """The program for arguments of those shapes and dtypes, and the tensors it returns.

        Raises:
          UnsupportedProgramError: the kernel returns something that is no tensor in HBM, or uses
            what is not built.
          SbufOverflowError, PsumOverflowError: its tiles do not fit.
        """
        name = self.function.__name__
        trace = Trace(self.function.__code__.co_filename)
        token = tracing(trace)
        try:
            tensors = [
                whole(trace.buffer(Memory.HBM, element_type_named(array.dtype.name), array.shape,
                                   Kind.ARGUMENT))
                for array in arrays
            ]  # fmt: skip
            returned = self.function(*tensors)
        finally:
            ended(token)
        listed = returned if isinstance(returned, tuple) else (returned,)
        results = {b.name for b in trace.buffers if b.kind is Kind.RESULT}
        for value in listed:
            if not isinstance(value, Tensor) or value != whole(value.buffer):
                raise UnsupportedProgramError(f"{name} returns {value!r}; return HBM tensors.")
            if value.buffer.name not in results:
                raise UnsupportedProgramError(f"{name} returns a tensor that is not its own.")
        body = program.Kernel(
            name=name,
            body=tuple(trace.instructions),
            buffers=tuple(b for b in trace.buffers if b.on_chip),
            parts=tuple(program.Part(name, sources=(line,)) for line in trace.lines),
        )
        written = program.Program(
            name=name,
            target=program.Target(chip),
            body=(body,),
            buffers=tuple(b for b in trace.buffers if not b.on_chip),
        )
        return synchronise(allocate(written)), returned


def jit(function: Callable[..., Any]) -> Kernel:
    """Marks a function as a kernel."""
    return Kernel(function)


def simulate(kernel: Kernel, order: core.Order | None = None) -> Callable[..., Any]:
    """The kernel as a function of numpy arrays, run by the emulator in `order`."""

    def run(*arrays: np.ndarray) -> Any:
        written, returned = kernel.trace(*arrays)
        inputs = [b.name for b in written.buffers if b.kind is Kind.ARGUMENT]
        results = core.run(
            written, [dict(zip(inputs, arrays, strict=True))], order=order
        )[0]  # fmt: skip
        if isinstance(returned, tuple):
            return tuple(results[tensor.buffer.name] for tensor in returned)
        return results[returned.buffer.name]

    return run
