"""NKI kernels within programs: the custom call ``AwsNeuronCustomNativeKernel``.

Its configuration holds the compiled kernel (`program.serialized_kernel`), so an exported program
runs in any process. The host executor calls the emulator; engines run the kernel as part of the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.display import counted
from neuronjax.emulate import checks, core
from neuronjax.emulate.checks import Finding
from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.emulate.record import record
from neuronjax.emulate.repeated import Repeated
from neuronjax.errors import ExecutionError, KernelWarning, UnsupportedProgramError
from neuronjax.hlo.custom_calls import (
    NATIVE_KERNEL,
    PYTHON_CALLBACK,
    SERIALIZED_KERNEL,
    custom_calls,
)
from neuronjax.hlo.location import source_line
from neuronjax.hlo.module import replicas_of, tensor_spec
from neuronjax.hlo.structure import prepend_operand
from neuronjax.host import callbacks
from neuronjax.host.meetings import Meetings
from neuronjax.jaxlib_api.mlir import ir, stablehlo
from neuronjax.notices import warned
from neuronjax.program import serialized_kernel
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program
from neuronjax.program.serialized_kernel import SerializedKernel
from neuronjax.program.user_lines import lines_by_path, with_lines, without_names

API_VERSION = 2
"""``API_VERSION_STATUS_RETURNING``, with a string as configuration."""


@dataclass(frozen=True, eq=False)
class _Reports:
    """Findings in terms of a kernel's lines."""

    program: Program
    declared: Mapping[str, str]
    #: What has been said.
    said: set[str] = field(default_factory=set)

    @cached_property
    def lines(self) -> Mapping[str, str]:
        """Path of an instruction, or tensor -> `file:line`."""
        return {**lines_by_path(self.program), **self.declared}

    def report(self, finding: Finding) -> None:
        """Ends a run, unless the finding is a read of what nothing has written, of which it warns
        once for every line."""
        if finding.kind is not checks.Kind.UNINITIALISED:
            checks.fail(finding)
        place = without_names(finding.message, self.lines)
        if place in self.said:
            return
        self.said.add(place)
        places = [self.lines[path] for path in finding.paths if path in self.lines]
        file, _, line = (places or [f"{self.program.name}:0"])[0].rpartition(":")
        warned(with_lines(finding.message, self.lines), KernelWarning, file, int(line))


@dataclass(frozen=True, eq=False, repr=False)
class NativeKernel(SerializedKernel):
    """A kernel as a function of arrays, one for each argument of its program."""

    meetings: Meetings = field(default_factory=Meetings, repr=False)
    """Where the ranks meet, if there are several."""

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return self.program.name

    def __repr__(self) -> str:
        """What a jaxpr shows: its name, and its programs if there are several."""
        return f"{self.name}{list(self.grid) if self.grid else ''}"

    @property
    def scratch_bytes(self) -> int:
        """Bytes of HBM that it needs beside its arguments and results."""
        views = {alias.buffer for alias in self.program.aliases}
        return sum(
            buffer.extent
            for buffer in self.program.buffers
            if not buffer.on_chip and buffer.kind is Kind.SCRATCH and buffer.name not in views
        )

    def run(
        self,
        arrays: Sequence[Sequence[np.ndarray]],
        order: core.Order | None = None,
        record_to: str | Path | None = None,
    ) -> Sequence[Mapping[str, np.ndarray]]:
        """Every result of the program by its name, flat, by the emulator; `arrays` are those of
        each rank, and so are the results. ``neuronjax replay`` reads the file `record_to`.

        What is read where nothing has been written is a ``KernelWarning``; such values are NaN, or
        integers of ones.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        arguments = [dict(zip(inputs, of_rank, strict=True)) for of_rank in arrays]
        try:
            if record_to is not None:
                return record(record_to, self.program, arguments, order=order, checks=self._checks)
            if order is not None:
                return core.run(self.program, arguments, order=order, checks=self._checks)
            return self._in_program_order(arguments)
        except ExecutionError as error:
            raise type(error)(with_lines(str(error), self._reports.lines)) from error

    @cached_property
    def _reports(self) -> _Reports:
        return _Reports(self.program, self.declared)

    @cached_property
    def _checks(self) -> checks.Checks:
        return checks.Checks(histories=True, report=self._reports.report)

    @cached_property
    def _in_program_order(self) -> Repeated:
        program, reported = self.program, self._checks

        def make(arguments: Sequence[core.Arguments], _: int) -> core.Emulation:
            return core.Emulation(program, arguments, checks=reported)

        return Repeated(make, takes_turns=True)

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """What a call returns. If several ranks exchange data, the first array is the number of
        the caller, which waits for the others. Raises as `run` does."""
        given = [np.asarray(array) for array in arrays]
        if self.program.ranks == 1:
            (results,) = self.run([given])
        else:
            name, ranks = self.program.name, self.program.ranks
            if len(given) == sum(b.kind is Kind.ARGUMENT for b in self.program.buffers):
                raise UnsupportedProgramError(
                    f"{name} has collectives between {ranks} ranks, which the platform neuron has "
                    "within jax.shard_map; or use nki.simulate with ranks."
                )
            rank, *given = given
            results = self.meetings.attend(name, int(rank), ranks, given, self.run)
        shapes = {buffer.name: buffer.shape for buffer in self.program.buffers}
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
    ranked: list[NativeKernel] = []
    replicas = replicas_of(module)
    for op in custom_calls(module, NATIVE_KERNEL.__eq__):
        try:
            _bind(op, known, ranked, replicas)
        except UnsupportedProgramError as error:
            raise UnsupportedProgramError(
                f"custom call {NATIVE_KERNEL} at {source_line(op)} {error}."
            ) from None
    return [*known.values(), *ranked]


def _bind(
    op: Any, known: dict[str, NativeKernel], ranked: list[NativeKernel], replicas: int
) -> None:
    attribute = op.attributes.get("backend_config", None)
    config = ir.StringAttr(attribute).value if isinstance(attribute, ir.StringAttr) else ""
    if config not in known:
        known[config] = read(config)
    kernel = known[config]
    _check_types(op, kernel)
    if kernel.program.ranks > 1:
        _check_ranks(kernel, replicas)
        kernel = read(config)  # ranks meet at each call by itself
        ranked.append(kernel)
        op = _with_rank(op)
    number = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(64), callbacks.register(kernel))
    op.attributes[SERIALIZED_KERNEL] = ir.StringAttr.get(config)
    op.attributes["call_target_name"] = ir.StringAttr.get(PYTHON_CALLBACK)
    op.attributes["backend_config"] = ir.StringAttr.get("")
    op.attributes["mhlo.backend_config"] = ir.DictAttr.get({"index": number})
    op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)


def _check_ranks(kernel: NativeKernel, replicas: int) -> None:
    if kernel.program.ranks != replicas:
        raise UnsupportedProgramError(
            f"runs {kernel.program.name}, whose collectives are between {kernel.program.ranks} "
            f"ranks, in a program for {counted(replicas, 'core')}; call it within jax.shard_map on "
            "a mesh of as many devices"
        )


def _with_rank(op: Any) -> Any:
    """The call with the number of its replica before its operands."""
    with ir.InsertionPoint(op), op.location:
        rank = stablehlo.ReplicaIdOp().result
    layouts = op.attributes.get("operand_layouts", None)
    op = prepend_operand(op, rank)
    if layouts is not None:
        scalar = ir.Attribute.parse("dense<> : tensor<0xindex>")
        op.attributes["operand_layouts"] = ir.ArrayAttr.get([scalar, *ir.ArrayAttr(layouts)])
    return op


def _check_types(op: Any, kernel: NativeKernel) -> None:
    """Raises ``UnsupportedProgramError`` unless the call has the kernel's operands and results."""
    buffers = {buffer.name: buffer for buffer in kernel.program.buffers}
    inputs = [buffer for buffer in buffers.values() if buffer.kind is Kind.ARGUMENT]
    outputs = [buffers[name] for name in kernel.results]
    operands = [value.type for value in op.operands]
    for what, types, wanted in (
        ("operands", operands, inputs),
        ("results", [value.type for value in op.results], outputs),
    ):
        given = [(spec.dtype.name, spec.shape) for spec in map(tensor_spec, types)]
        declared = [(numpy_dtype(buffer.dtype).name, buffer.shape) for buffer in wanted]
        if given != declared:
            raise UnsupportedProgramError(
                f"has {what} {_show_types(given)} where {kernel.program.name} was compiled for "
                f"{_show_types(declared)}; call the kernel again with these arrays"
            )


def _show_types(types: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in types) or "none"
