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
            each,
            body=_without(
                each.body,
                {p.name for p in each.parameters if (each.name, p.name) not in wanted},
            ),
        )
        for each in program.functions
    )
    body = _without(program.body, scratch - read)
    return dataclasses.replace(program, functions=functions, body=body)


def _read(program: Program) -> set[str]:
    """The program's buffers that somebody reads, or that share memory with others."""
    found = {name for alias in program.aliases for name in (alias.buffer, alias.of)}
    found |= {buffer.name for buffer in program.buffers if buffer.kind is not Kind.SCRATCH}
    found |= set(_reads(program.body))
    inside = {each.name: {*_reads(each.body), *_passed(each)} for each in program.functions}
    parameters = {each.name: each.parameters for each in program.functions}
    for call in calls(program.body):
        for parameter, given in zip(parameters[call.function], call.arguments, strict=True):
            if parameter.name in inside[call.function]:
                found.add(given.name)
    return found


def _wanted(program: Program, read: set[str]) -> set[tuple[str, str]]:
    """Parameters of functions that some call gives a buffer for which somebody reads."""
    parameters = {each.name: each.parameters for each in program.functions}
    found = {
        (call.function, parameter.name)
        for call in calls(program.body)
        for parameter, given in zip(parameters[call.function], call.arguments, strict=True)
        if given.name in read
    }
    inner = (call.function for each in program.functions for call in calls(each.body))
    return found | {(name, parameter.name) for name in inner for parameter in parameters[name]}


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
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, DmaCopy):
            if node.dst.buffer.name not in unread:
                found.append(node)
        elif isinstance(node, Loop | Kernel):
            body = _without(node.body, unread)
            if body == node.body:
                found.append(node)
            elif body or isinstance(node, Kernel):
                found.append(dataclasses.replace(node, body=body) if body else node)
        else:
            found.append(node)
    return tuple(found)
