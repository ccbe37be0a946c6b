"""NKI kernels within programs: the custom call ``AwsNeuronCustomNativeKernel``.

Its configuration holds the compiled kernel (`program.serialized_kernel`), so an exported program
runs in any process. The host executor calls the emulator; engines run the kernel as part of the
program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from neuronjax.emulate import checks, core
from neuronjax.emulate.checks import Finding
from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import ExecutionError, KernelWarning, UnsupportedProgramError
from neuronjax.hlo.custom_calls import (
    NATIVE_KERNEL,
    PYTHON_CALLBACK,
    SERIALIZED_KERNEL,
    custom_calls,
)
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import tensor_spec
from neuronjax.host import callbacks
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.call import result_types
from neuronjax.notices import warned
from neuronjax.program import serialized_kernel
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program
from neuronjax.program.serialized_kernel import SerializedKernel
from neuronjax.program.walk import instructions

API_VERSION = 2
"""``API_VERSION_STATUS_RETURNING``, with a string as configuration."""


@dataclass(frozen=True, eq=False)
class NativeKernel(SerializedKernel):
    """A kernel as a function of arrays, one for each argument of its program."""

    def run(
        self, arrays: Sequence[np.ndarray], order: core.Order | None = None
    ) -> Mapping[str, np.ndarray]:
        """Every result of the program by its name, flat, by the emulator.

        What is read where nothing has been written is a ``KernelWarning``; such values are NaN, or
        integers of ones.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        arguments = dict(zip(inputs, arrays, strict=True))
        reported = checks.Checks(histories=True, report=self._report)
        try:
            return core.run(self.program, [arguments], order=order, checks=reported)[0]
        except ExecutionError as error:
            raise type(error)(with_lines(str(error), self._lines)) from error

    @cached_property
    def _lines(self) -> Mapping[str, str]:
        """Path of an instruction, or tensor -> `file:line`."""
        return {**lines_by_path(self.program), **self.declared}

    def _report(self, finding: Finding) -> None:
        """Ends a run, unless the finding is a read of what nothing has written."""
        if finding.kind is not checks.Kind.UNINITIALISED:
            checks.fail(finding)
        places = [self._lines[path] for path in finding.paths if path in self._lines]
        file, _, line = (places or [f"{self.program.name}:0"])[0].rpartition(":")
        warned(with_lines(finding.message, self._lines), KernelWarning, file, int(line))

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """What a call returns. Raises as `run` does."""
        shapes = {buffer.name: buffer.shape for buffer in self.program.buffers}
        results = self.run([np.asarray(array) for array in arrays])
        return tuple(results[name].reshape(shapes[name]) for name in self.results)


def read(configuration: str) -> NativeKernel:
    """The kernel of a call.

    Raises:
      UnsupportedProgramError: its binary is one for the device, or it is none.
    """
    kernel = serialized_kernel.read(configuration)
    return NativeKernel(kernel.program, kernel.results, kernel.grid, kernel.declared)


def bind(module: ir.Module) -> list[Callable[..., Any]]:
    """Makes calls of kernels calls of host functions, in place; the functions must be kept until
    the module's callbacks are bound. Needs the context of ``module``.

    Raises:
      UnsupportedProgramError: there is no kernel in a call that can be run here; the message has
        the user's line.
    """
    known: dict[str, NativeKernel] = {}
    for op in custom_calls(module, NATIVE_KERNEL.__eq__):
        try:
            _bind(op, known)
        except UnsupportedProgramError as error:
            raise UnsupportedProgramError(
                f"custom call {NATIVE_KERNEL} at {source_line(op)} {error}."
            ) from None
    return list(known.values())


def _bind(op: Any, known: dict[str, NativeKernel]) -> None:
    attribute = op.attributes.get("backend_config", None)
    config = ir.StringAttr(attribute).value if isinstance(attribute, ir.StringAttr) else ""
    if config not in known:
        known[config] = read(config)
    _check_types(op, known[config])
    number = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), callbacks.register(known[config]))
    op.attributes[SERIALIZED_KERNEL] = ir.StringAttr.get(config)
    op.attributes["call_target_name"] = ir.StringAttr.get(PYTHON_CALLBACK)
    op.attributes["backend_config"] = ir.StringAttr.get("")
    op.attributes["mhlo.backend_config"] = ir.DictAttr.get({"index": number})
    op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)


def _check_types(op: Any, kernel: NativeKernel) -> None:
    """Raises ``UnsupportedProgramError`` unless the call has the kernel's operands and results."""
    buffers = {buffer.name: buffer for buffer in kernel.program.buffers}
    inputs = [buffer for buffer in buffers.values() if buffer.kind is Kind.ARGUMENT]
    outputs = [buffers[name] for name in kernel.results]
    operands = [value.type for value in op.operands]
    for what, types, wanted in (
        ("operands", operands, inputs),
        ("results", result_types(op), outputs),
    ):
        given = [(spec.dtype.name, spec.shape) for spec in map(tensor_spec, types)]
        declared = [(numpy_dtype(buffer.dtype).name, buffer.shape) for buffer in wanted]
        if given != declared:
            raise UnsupportedProgramError(
                f"has {what} {_shown(given)} where {kernel.program.name} was compiled for "
                f"{_shown(declared)}; call the kernel again with these arrays"
            )


def _shown(types: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in types) or "none"


def lines_by_path(program: Program) -> dict[str, str]:
    """Path of an instruction -> `file:line`."""
    return {
        place.path: place.kernel.parts[instruction.part].sources[0]
        for place, instruction in instructions(program)
        if place.kernel is not None and instruction.part is not None and place.kernel.parts
    }


def with_lines(message: str, lines: Mapping[str, str]) -> str:
    """The message, with the line before every path and tensor that it names."""
    return re.sub(
        r"[^\s(]*\w",
        lambda match: f"{lines[match[0]]}: {match[0]}" if match[0] in lines else match[0],
        message,
    )
