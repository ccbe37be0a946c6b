"""NKI kernels within programs.

A call is a `host` instruction while other kernels are written, joined and put in order; then the
kernel takes its place, with the instructions that its author wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache

from neuronjax.hlo.custom_calls import SERIALIZED_KERNEL
from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.lower.control import host
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.lower.write.rebuild import on_buffers, rebuilt
from neuronjax.program import serialized_kernel
from neuronjax.program.control import Host
from neuronjax.program.operand import Buffer, Kind, Register
from neuronjax.program.program import (
    Alias,
    Call,
    Function,
    Kernel,
    Node,
    Program,
    Split,
    Target,
)
from neuronjax.program.serialized_kernel import SerializedKernel
from neuronjax.program.user_lines import lines_by_path, with_lines
from neuronjax.program.verify import UNORDERED, verify

CALL = "nki_kernel"
"""`Host.function` of a call; its attributes are the kernel's configuration, its operands are the
kernel's arguments and results. One that is written to is a result, which holds its values."""


def lower(scope: Scope, op: Op) -> None:
    """A call of a kernel that runs here as it is; any other custom call is left to the host."""
    configuration = op.attributes.get(SERIALIZED_KERNEL)
    if configuration is None:
        host.lower(scope, op)
        return
    kernel = serialized_kernel.known(configuration)
    obstacle = _obstacle(configuration, op, scope.unit.target, scope.unit.ranks)
    if obstacle:
        host.lower(scope, op, f"the kernel {kernel.program.name} {obstacle}")
        return
    results = {
        name: scope.result(value) for name, value in zip(kernel.results, op.results, strict=True)
    }
    written = _written(kernel)
    views = []
    for argument, value in zip(_arguments(kernel), _operands(kernel, op), strict=True):
        view = whole_view(scope.dense(value), value.shape)
        if argument.name in written:
            target = results[written[argument.name]]
            scope.copy(view, whole_view(target, value.shape), op)
            view = whole_view(target, value.shape)
        views.append(view)

    def write(builder: KernelBuilder, seen: list[View], made: list[Buffer]) -> None:
        builder.emit(
            Host(
                function=CALL,
                dsts=tuple(whole_view(buffer, buffer.shape).access() for buffer in made),
                srcs=tuple(view.access() for view in seen),
                attributes=configuration,
            )
        )

    name, buffers = kernel.program.name, list(results.values())
    scope.kernel(name, [op], (CALL, configuration), views, buffers, write)


def written_out(program: Program) -> Program:
    """The program with kernels in place of their calls."""
    writer = _Writer()
    functions = tuple(map(writer.function, program.functions))
    body = rebuilt(program.body, writer.node)
    return dataclasses.replace(
        program,
        functions=functions,
        body=body,
        buffers=(*program.buffers, *writer.buffers),
        registers=(*program.registers, *writer.registers),
        aliases=(*program.aliases, *writer.aliases),
    )


class _Writer:
    """What the program gets beside the kernels."""

    def __init__(self) -> None:
        self._count = 0
        self._parts: dict[str, int] = {}  # function that is a kernel -> its parts
        self.buffers: list[Buffer] = []
        self.registers: list[Register] = []
        self.aliases: list[Alias] = []

    def function(self, function: Function) -> Function:
        """The function with kernels in place of their calls."""
        body = rebuilt(function.body, self.node)
        if body is function.body:
            return function
        (kernel,) = body
        self._parts[function.name] = _parts_of(kernel)
        return dataclasses.replace(function, body=body)

    def node(self, node: Node) -> Node | None:
        """The kernel that stands for a kernel of one call; other kernels as they are."""
        if isinstance(node, Call) and node.function in self._parts:
            return dataclasses.replace(node, scopes=node.scopes * self._parts[node.function])
        if not isinstance(node, Kernel | Split):
            return None
        call = node.body[0] if isinstance(node, Kernel) and node.body else None
        if not isinstance(call, Host) or call.function != CALL:
            return node
        assert isinstance(node, Kernel)
        self._count += 1
        kernel = serialized_kernel.read(call.attributes, f"_nki{self._count}")
        buffers = self._bound(kernel, call)
        self.registers += kernel.program.registers
        self.aliases += (alias for alias in kernel.program.aliases if alias.of not in buffers)
        (body,) = kernel.program.body
        return _placed(body, buffers, node)

    def _bound(self, kernel: SerializedKernel, call: Host) -> dict[str, Buffer]:
        """Buffers of the kernel in HBM -> those of the program."""
        bound: dict[str, Buffer] = {}
        for argument, access in zip(_arguments(kernel), call.srcs, strict=True):
            bound[argument.name] = access.buffer
        for name, access in zip(kernel.results, call.dsts, strict=True):
            bound[name] = access.buffer
        for buffer in kernel.program.buffers:
            if buffer.name not in bound:
                kind = buffer.kind if buffer.kind is Kind.CONSTANT else Kind.SCRATCH
                bound[buffer.name] = dataclasses.replace(buffer, kind=kind, address=None)
                self.buffers.append(bound[buffer.name])
        return bound


def _placed(node: Node, buffers: Mapping[str, Buffer], call: Kernel) -> Node:
    """A kernel on other buffers, with the line and the name scope of its call."""
    if isinstance(node, Split):
        kernels = tuple(_kernel(kernel, buffers, call) for kernel in node.kernels)
        return dataclasses.replace(node, name=call.name, kernels=kernels)
    assert isinstance(node, Kernel)
    return _kernel(node, buffers, call)


def _kernel(kernel: Kernel, buffers: Mapping[str, Buffer], call: Kernel) -> Kernel:
    return dataclasses.replace(
        on_buffers(kernel, buffers),
        name=f"{call.name} {kernel.name.rpartition(' ')[2]}" if " " in kernel.name else call.name,
        operations=call.operations,
        sources=call.sources,
        parts=tuple(dataclasses.replace(p, operations=(p.name,)) for p in kernel.parts),
        scopes=call.scopes * max(1, len(kernel.parts)),
    )


def _parts_of(node: Node) -> int:
    kernel = node.kernels[0] if isinstance(node, Split) else node
    assert isinstance(kernel, Kernel)
    return max(1, len(kernel.parts))


@lru_cache(maxsize=64)
def _broken_rule(configuration: str) -> str:
    """What breaks a rule of programs; some kernels break those that no compiler checks. Of what two
    cores write in any order, the emulator's orders tell whether it agrees."""
    kernel = serialized_kernel.known(configuration)
    broken = [finding for finding in verify(kernel.program) if finding.rule != UNORDERED]
    if not broken:
        return ""
    lines = {**lines_by_path(kernel.program), **kernel.declared}
    return f"breaks a rule that no compiler checks: {with_lines(str(broken[0]), lines)}"


def _operands(kernel: SerializedKernel, op: Op) -> Sequence[Value]:
    """The values of its arguments; the number of the rank may be before them."""
    return op.operands[len(op.operands) - len(_arguments(kernel)) :]


def without_ranks(graph: Graph, target: Target, ranks: int) -> None:
    """Takes the number of the rank from calls of kernels that engines run, which know it; in
    place."""
    for op in graph.operations:
        configuration = op.attributes.get(SERIALIZED_KERNEL)
        if configuration is not None and not _obstacle(configuration, op, target, ranks):
            op.operands = tuple(_operands(serialized_kernel.known(configuration), op))


def _obstacle(configuration: str, op: Op, target: Target, ranks: int) -> str:
    """What keeps a kernel from running on cores such as these, where values lie as the compiler
    has them, and what to do about it; nothing keeps most."""
    kernel = serialized_kernel.known(configuration)
    own, program = kernel.program.target, kernel.program
    if own.chip != target.chip:
        return (
            f"is compiled for {own.chip}, and this program for {target.chip}: leave out the "
            "kernel's platform_target and NEURON_PLATFORM_TARGET_OVERRIDE, or choose that machine"
        )
    if own.lnc not in (1, target.lnc):
        return (
            f"has {own.lnc} programs, and a logical core here {target.lnc} physical ones: call it "
            f"with a grid of {target.lnc}, or choose lnc={own.lnc}"
        )
    if program.ranks not in (1, ranks):
        return (
            f"exchanges data between {program.ranks} ranks, and this program has {ranks}: call it "
            "on a mesh of as many cores"
        )
    return _obstacle_of_values(kernel, op) or _broken_rule(configuration)


def _obstacle_of_values(kernel: SerializedKernel, op: Op) -> str:
    """What of its arrays or its form keeps a kernel from standing within a compiled program."""
    program = kernel.program
    buffers = {buffer.name: buffer for buffer in program.buffers}
    wanted = [*_arguments(kernel), *(buffers[name] for name in kernel.results)]
    values = (*_operands(kernel, op), *op.results)
    for value, buffer in zip(values, wanted, strict=True):
        if value.is_empty:
            return "takes or returns an array without elements: leave the call out for such arrays"
        storage = storage_of(value.dtype)
        if storage.dtype != buffer.dtype or storage.words != 1:
            return (
                f"takes or returns {value.dtype}, which compiled programs keep in another form: "
                "convert the array, with astype, to a type of 32 bits or less"
            )
    if not set(_written(kernel).values()) <= set(kernel.results):
        return "writes to an argument that it does not return: return it"
    if len(program.body) != 1:
        return (
            "has loops over registers within other loops, which only its own run takes apart: use "
            "a loop over a range for one of them"
        )
    if any(
        alias.buffer in buffers and buffers[alias.buffer].kind is Kind.SCRATCH
        for alias in program.aliases
    ):  # functions cannot declare that parameters share memory
        return (
            "reads a tensor in HBM as elements of another type: take the view of a tile in SBUF, "
            "or pass the array as that type"
        )
    return ""


def _written(kernel: SerializedKernel) -> dict[str, str]:
    """Argument that the kernel writes to -> the result that holds its values."""
    arguments = {argument.name for argument in _arguments(kernel)}
    return {alias.of: alias.buffer for alias in kernel.program.aliases if alias.of in arguments}


def _arguments(kernel: SerializedKernel) -> list[Buffer]:
    return [buffer for buffer in kernel.program.buffers if buffer.kind is Kind.ARGUMENT]


RULES = {"custom_call": lower}
"""Operation -> rule."""
