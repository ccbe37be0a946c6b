"""Kernels: functions that are traced with the shapes of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neuronjax.emulate import core
from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.machine.chips import CHIPS
from neuronjax.nki.building import closed_groups
from neuronjax.nki.trace import Tensor, Trace, ended, is_tracing, tracing, whole
from neuronjax.program import program
from neuronjax.program.element_types import element_type_named
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Kind, Memory
from neuronjax.program.verify import verify
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline

KERNEL_CHIPS = tuple(name for name, chip in CHIPS.items() if chip.core.is_published)
"""The chips that kernels are written for."""


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
        shapes = [np.empty(array.shape, array.dtype) for array in arrays]
        _, returned = self.trace(*shapes)
        results = jax.tree.map(
            lambda tensor: jax.ShapeDtypeStruct(tensor.shape, numpy_dtype(tensor.dtype)),
            returned,
            is_leaf=lambda value: isinstance(value, Tensor),
        )
        values = simulate(self)
        return jax.pure_callback(
            lambda *given: values(*map(np.asarray, given)),
            results,
            *arrays,
            vmap_method="sequential",
        )

    def trace(self, *arrays: np.ndarray, chip: str = "trainium2") -> tuple[program.Program, Any]:
        """The program for arguments of those shapes and dtypes, and the tensors it returns.

        Raises:
          UnsupportedProgramError: the kernel returns something that is no tensor in HBM, or uses
            what is not built.
          KernelError: the chip would refuse an instruction.
          SbufOverflowError, PsumOverflowError: its tiles do not fit.
        """
        name = self.function.__name__
        if chip not in KERNEL_CHIPS:
            raise KernelError(
                f"{name}: no chip {chip!r} runs kernels; there are {', '.join(KERNEL_CHIPS)}."
            )
        others = [value for value in arrays if not hasattr(value, "dtype")]
        if others:
            raise KernelError(f"{name} is called with {others[0]!r}; kernels take arrays.")
        try:
            inspect.signature(self.function).bind(*arrays)
        except TypeError as error:
            raise KernelError(f"{name} is called with {len(arrays)} arrays: {error}.") from None
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
            body=closed_groups(trace.instructions),
            buffers=tuple(b for b in trace.buffers if b.on_chip),
            parts=tuple(program.Part(name, sources=(line,)) for line in trace.lines),
        )
        written = program.Program(
            name=name,
            target=program.Target(chip),
            body=(body,),
            buffers=tuple(b for b in trace.buffers if not b.on_chip),
        )
        finished = synchronise(allocate(written))
        _check(name, finished)
        return finished, returned


def _check(name: str, written: program.Program) -> None:
    """Raises ``KernelError`` with what the chip would refuse, by the kernel's lines."""
    findings = verify(written)
    if findings:
        raise KernelError(
            f"{name} is no program for {written.target.chip}:\n"
            + "\n".join(
                f"  {_line(written, finding.path)}{finding}"
                for finding in findings[:_MOST_FINDINGS]
            )
        )


def _line(written: program.Program, path: str) -> str:
    """``file:line: `` of an instruction's path, `program/kernel/number:mnemonic`; else empty."""
    number = path.split("/")[-1].partition(":")[0]
    kernel = next(k for k in written.body if isinstance(k, program.Kernel))
    instruction = kernel.body[int(number)] if number.isdigit() else None
    if not isinstance(instruction, Instruction):
        return ""
    return f"{kernel.parts[instruction.part].sources[0]}: "


_MOST_FINDINGS = 10


def jit(function: Callable[..., Any]) -> Kernel:
    """Marks a function as a kernel."""
    return Kernel(function)


def simulate(
    kernel: Kernel, order: core.Order | None = None, chip: str = "trainium2"
) -> Callable[..., Any]:
    """The kernel as a function of numpy arrays, run by the emulator in `order`."""

    def run(*arrays: np.ndarray) -> Any:
        written, returned = kernel.trace(*arrays, chip=chip)
        inputs = [b.name for b in written.buffers if b.kind is Kind.ARGUMENT]
        results = core.run(
            written, [dict(zip(inputs, arrays, strict=True))], order=order
        )[0]  # fmt: skip
        if isinstance(returned, tuple):
            return tuple(results[tensor.buffer.name] for tensor in returned)
        return results[returned.buffer.name]

    return run


def benchmark(kernel: Kernel, chip: str = "trainium2") -> Callable[..., Timeline]:
    """The kernel as a function of numpy arrays, of which only shapes and dtypes count, that returns
    its time on the chip, without values."""

    def run(*arrays: np.ndarray) -> Timeline:
        return schedule(kernel.trace(*arrays, chip=chip)[0])

    return run
