"""NKI kernels within programs: called like an operation of the host while other kernels are
written, joined and put in order, then written in place of the call, as their authors have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache

from neuronjax.hlo.custom_calls import CARRIED
from neuronjax.hlo.graph import Op
from neuronjax.lower.control import host
from neuronjax.lower.scope import Scope
from neuronjax.lower.values.storage import storage_of
from neuronjax.lower.values.view import View, whole_view
from neuronjax.lower.write.builder import KernelBuilder
from neuronjax.lower.write.rebuild import on_buffers, rebuilt
from neuronjax.program import carried_kernel
from neuronjax.program.carried_kernel import CarriedKernel
from neuronjax.program.control import Host
from neuronjax.program.operand import Buffer, Kind, Register
from neuronjax.program.program import Alias, Kernel, Node, Program, Split, Target
from neuronjax.program.verify import verify

CALL = "nki_kernel"
"""`Host.function` of a call; its attributes are the kernel's configuration, its operands are the
kernel's arguments and results. One that is written to is a result, which holds its values."""


def lower(scope: Scope, op: Op) -> None:
    """A call of a kernel that runs here as it is; any other custom call is left to the host."""
    configuration = op.attributes.get(CARRIED)
    if configuration is None or not _runs(configuration, op, scope.unit.target):
        host.lower(scope, op)
        return
    kernel = _known(configuration)
    results = {
        name: scope.result(value) for name, value in zip(kernel.results, op.results, strict=True)
    }
    written = {alias.of: alias.buffer for alias in kernel.program.aliases}
    views = []
    for argument, value in zip(_arguments(kernel), op.operands, strict=True):
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
    functions = tuple(
        dataclasses.replace(function, body=rebuilt(function.body, writer.kernel))
        for function in program.functions
    )
    body = rebuilt(program.body, writer.kernel)
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
        self.buffers: list[Buffer] = []
        self.registers: list[Register] = []
        self.aliases: list[Alias] = []

    def kernel(self, node: Node) -> Node | None:
        """The kernel that a kernel of one call stands for; other kernels as they are."""
        if not isinstance(node, Kernel | Split):
            return None
        call = node.body[0] if isinstance(node, Kernel) and node.body else None
        if not isinstance(call, Host) or call.function != CALL:
            return node
        assert isinstance(node, Kernel)
        self._count += 1
        kernel = carried_kernel.read(call.attributes, f"_nki{self._count}")
        buffers = self._bound(kernel, call)
        self.registers += kernel.program.registers
        self.aliases += (alias for alias in kernel.program.aliases if alias.of not in buffers)
        (body,) = kernel.program.body
        return _placed(body, buffers, node)

    def _bound(self, kernel: CarriedKernel, call: Host) -> dict[str, Buffer]:
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
    """A kernel on other buffers, at the lines and in the scopes of its call."""
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
    )


@lru_cache(maxsize=64)
def _known(configuration: str) -> CarriedKernel:
    return carried_kernel.read(configuration)


@lru_cache(maxsize=64)
def _is_sound(configuration: str) -> bool:
    """Whether every rule of programs holds; some kernels break those that no compiler checks."""
    return not verify(_known(configuration).program)


def _runs(configuration: str, op: Op, target: Target) -> bool:
    """Whether the kernel was compiled for cores such as these, and values lie as it expects."""
    kernel = _known(configuration)
    own = kernel.program.target
    if own.chip != target.chip or own.lnc not in (1, target.lnc):
        return False
    buffers = {buffer.name: buffer for buffer in kernel.program.buffers}
    wanted = [*_arguments(kernel), *(buffers[name] for name in kernel.results)]
    values = (*op.operands, *op.results)
    same = all(
        storage_of(value.dtype).dtype == buffer.dtype and storage_of(value.dtype).words == 1
        for value, buffer in zip(values, wanted, strict=True)
    )
    results_of_arguments = {alias.buffer for alias in kernel.program.aliases}
    returned = all(
        buffer.kind is not Kind.RESULT or name in kernel.results
        for name, buffer in buffers.items()
        if name in results_of_arguments
    )
    empty = any(value.is_empty for value in values)
    return same and returned and not empty and _is_sound(configuration)


def _arguments(kernel: CarriedKernel) -> list[Buffer]:
    return [buffer for buffer in kernel.program.buffers if buffer.kind is Kind.ARGUMENT]


RULES = {"custom_call": lower}
"""Operation -> rule."""
