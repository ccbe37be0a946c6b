"""Programs with other buffers: frozen records are made anew where they change, and only there."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer
from neuronjax.program.program import (
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Program,
    Split,
    While,
)
from neuronjax.program.records import altered

_Kind = TypeVar("_Kind")
_FIELDS: Mapping[str, str] = {
    "If": "then otherwise",
    "While": "condition body",
    "Loop": "body",
    "Kernel": "body",
    "Split": "kernels",
}


class BufferMap:
    """Buffers by name -> the buffers that take their place; remembers accesses that it has seen."""

    def __init__(self, known: Mapping[str, Buffer]) -> None:
        self._known = known
        self._seen: dict[int, tuple[Access, Access]] = {}

    def buffer(self, old: Buffer) -> Buffer:
        """What stands for a buffer: itself, unless another is known."""
        new = self._known.get(old.name)
        return old if new is None else new

    def operand(self, old: Any) -> Any:
        """What stands for an operand: accesses to other buffers are made anew."""
        if not isinstance(old, Access):
            return old
        seen = self._seen.get(id(old))
        if seen is not None:
            return seen[1]
        buffer = self.buffer(old.buffer)
        new = old if buffer is old.buffer else altered(old, buffer=buffer)
        self._seen[id(old)] = (old, new)
        return new

    def instruction(self, old: Instruction) -> Instruction:
        """An instruction on other buffers."""
        if all(self.operand(access) is access for access in old.accesses()):
            return old
        return old.with_operands(self.operand)


def with_tiles(nodes: tuple[Node, ...], known: Mapping[str, Buffer]) -> tuple[Node, ...]:
    """Nodes with other buffers in the place of those of these names."""
    return _renamed(nodes, BufferMap(known))


def _renamed(nodes: tuple[Node, ...], names: BufferMap) -> tuple[Node, ...]:
    return mapped(nodes, Instruction, names.instruction)


def mapped(
    nodes: tuple[Node, ...], kind: type[_Kind], change: Callable[[_Kind], Node]
) -> tuple[Node, ...]:
    """Nodes in which those of a kind, wherever they are, are changed."""
    return rebuilt(nodes, lambda node: change(node) if isinstance(node, kind) else None)


def with_kernels(program: Program, change: Callable[[Kernel], Node]) -> Program:
    """A program in which every kernel is changed, once if it stands at several places."""
    finished: dict[int, Node] = {}

    def once(kernel: Kernel) -> Node:
        if id(kernel) not in finished:
            finished[id(kernel)] = change(kernel)
        return finished[id(kernel)]

    functions = tuple(
        dataclasses.replace(function, body=mapped(function.body, Kernel, once))
        for function in program.functions
    )
    return dataclasses.replace(
        program, functions=functions, body=mapped(program.body, Kernel, once)
    )


def rebuilt(nodes: tuple[Node, ...], change: Callable[[Node], Node | None]) -> tuple[Node, ...]:
    """Nodes after `change`, which gives None for those that are to be entered instead."""
    new_nodes = []
    for node in nodes:
        new = change(node)
        new_nodes.append(_entered(node, change) if new is None else new)
    return same(nodes, new_nodes)


def same(nodes: tuple[Node, ...], new_nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The new nodes; the `nodes` themselves if they are the same."""
    if len(nodes) == len(new_nodes) and all(map(operator.is_, nodes, new_nodes)):
        return nodes
    return tuple(new_nodes)


def with_body(loop: Loop, body: tuple[Node, ...]) -> Loop:
    """A loop with a body; the `loop` itself if that is its own."""
    return loop if body is loop.body else dataclasses.replace(loop, body=body)


def with_bodies(node: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """A loop or a condition with every list of its nodes after `change`; others as they are."""
    if not isinstance(node, Loop | While | If):
        return node
    values = {name: change(getattr(node, name)) for name in _FIELDS[type(node).__name__].split()}
    changed: Node = dataclasses.replace(node, **values)  # type: ignore[arg-type]
    return changed


def _entered(node: Node, change: Callable[[Node], Node | None]) -> Node:
    if not isinstance(node, Loop | While | If | Kernel | Split):
        return node
    names = _FIELDS[type(node).__name__].split()
    values = {name: rebuilt(getattr(node, name), change) for name in names}
    if all(values[name] is getattr(node, name) for name in names):
        return node
    changed: Node = dataclasses.replace(node, **values)  # type: ignore[arg-type]
    return changed


def with_buffers(
    program: Program, outer: Mapping[str, Buffer], tiles: Mapping[int, Mapping[str, Buffer]]
) -> Program:
    """The program with buffers replaced by name: its own, and those of kernels by their id."""
    finished: dict[int, Node] = {}

    def body(nodes: tuple[Node, ...], known: Mapping[str, Buffer]) -> tuple[Node, ...]:
        calls = BufferMap(known)

        def change(node: Node) -> Node | None:
            if isinstance(node, Call):
                arguments = tuple(map(calls.buffer, node.arguments))
                return dataclasses.replace(node, arguments=arguments)
            if not isinstance(node, Kernel):
                return None
            if id(node) not in finished:
                finished[id(node)] = on_buffers(node, {**known, **tiles.get(id(node), {})})
            return finished[id(node)]

        return rebuilt(nodes, change)

    functions = tuple(_function(function, outer, body) for function in program.functions)
    buffers = tuple(outer.get(buffer.name, buffer) for buffer in program.buffers)
    return dataclasses.replace(
        program, buffers=buffers, functions=functions, body=body(program.body, outer)
    )


def _function(
    function: Function,
    outer: Mapping[str, Buffer],
    body: Callable[[tuple[Node, ...], Mapping[str, Buffer]], tuple[Node, ...]],
) -> Function:
    own = {buffer.name for buffer in function.parameters}
    known = {name: buffer for name, buffer in outer.items() if name not in own}
    return dataclasses.replace(function, body=body(function.body, known))


def on_buffers(kernel: Kernel, known: Mapping[str, Buffer]) -> Kernel:
    """A kernel on other buffers, by the names of those it has."""
    names = BufferMap(known)
    return dataclasses.replace(
        kernel,
        buffers=tuple(map(names.buffer, kernel.buffers)),
        body=_renamed(kernel.body, names),
    )
