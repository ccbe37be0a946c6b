"""Programs without copies to scratch that nobody reads, such as sums wanted in tiles only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Kind
from neuronjax.program.program import Function, Kernel, Loop, Node, Program
from neuronjax.program.walk import calls, children


def without_unread(program: Program) -> Program:
    """The program without such copies; kernels of nothing else stay as they are."""
    read = _read(program)
    scratch = {buffer.name for buffer in program.buffers if buffer.kind is Kind.SCRATCH}
    wanted = _wanted(program, read)
    functions = tuple(
        dataclasses.replace(
            function,
            body=_without(
                function.body,
                {p.name for p in function.parameters if (function.name, p.name) not in wanted},
            ),
        )
        for function in program.functions
    )
    body = _without(program.body, scratch - read)
    return dataclasses.replace(program, functions=functions, body=body)


def _read(program: Program) -> set[str]:
    """The program's buffers that somebody reads, or that share memory with others."""
    read = {name for alias in program.aliases for name in (alias.buffer, alias.of)}
    read |= {buffer.name for buffer in program.buffers if buffer.kind is not Kind.SCRATCH}
    read |= set(_reads(program.body))
    inside = {
        function.name: {*_reads(function.body), *_passed(function)}
        for function in program.functions
    }
    parameters = {function.name: function.parameters for function in program.functions}
    for call in calls(program.body):
        for parameter, given in zip(parameters[call.function], call.arguments, strict=True):
            if parameter.name in inside[call.function]:
                read.add(given.name)
    return read


def _wanted(program: Program, read: set[str]) -> set[tuple[str, str]]:
    """Parameters of functions that some call gives a buffer for which somebody reads."""
    parameters = {function.name: function.parameters for function in program.functions}
    wanted = {
        (call.function, parameter.name)
        for call in calls(program.body)
        for parameter, given in zip(parameters[call.function], call.arguments, strict=True)
        if given.name in read
    }
    inner = (call.function for function in program.functions for call in calls(function.body))
    return wanted | {(name, parameter.name) for name in inner for parameter in parameters[name]}


def _passed(function: Function) -> Iterator[str]:
    """What a function gives to others, which counts as read."""
    return (buffer.name for call in calls(function.body) for buffer in call.arguments)


def _reads(nodes: tuple[Node, ...]) -> Iterator[str]:
    """Buffers that instructions do anything with but overwrite them by a copy."""
    for node in nodes:
        if isinstance(node, DmaCopy):
            yield node.src.buffer.name
        elif isinstance(node, Instruction):
            yield from (access.buffer.name for access in node.accesses())
        else:
            yield from _reads(children(node))


def _without(nodes: tuple[Node, ...], unread: set[str]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, DmaCopy):
            if node.dst.buffer.name not in unread:
                kept.append(node)
        elif isinstance(node, Loop | Kernel):
            body = _without(node.body, unread)
            if body == node.body:
                kept.append(node)
            elif body or isinstance(node, Kernel):
                kept.append(dataclasses.replace(node, body=body) if body else node)
        else:
            kept.append(node)
    return tuple(kept)
