"""Traversing programs: every node with its place, and how often an instruction runs.

A place is the path from the program down to a node, such as ``main/matmul/k/2:nc_matmul``: kernels
and functions by name, loops by variable, instructions by position and mnemonic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Register
from neuronjax.program.program import Call, Function, If, Kernel, Loop, Node, Program, Split, While


@dataclass(slots=True, eq=False)
class Place:
    """The place of a node: its path, enclosing loops (outermost first), kernel and function.

    Every node gets one, and few are asked for their paths, which are put together then.
    """

    _path: str | None
    loops: tuple[Loop, ...] = ()
    kernel: Kernel | None = None
    function: Function | None = None
    #: The place of what is about the node, and the node as its `_position`-th child.
    _about: Place | None = None
    _node: Node | None = None
    _position: int = 0

    @property
    def path(self) -> str:
        """Names and positions from the program down to the node."""
        if self._path is None:
            assert self._about is not None
            assert self._node is not None
            self._path = f"{self._about.path}/{label(self._node, self._position)}"
        return self._path

    @property
    def trips(self) -> dict[str, int]:
        """Loop variable -> greatest number of trips; loops without a known limit are left out."""
        if not self.loops:
            return {}
        counts = ((loop.variable, loop.most_trips) for loop in self.loops)
        return {name: count for name, count in counts if count is not None}

    @property
    def times(self) -> int | None:
        """How often the place is reached at most, with conditions taken and `while` run once.

        None: a loop has no known limit.
        """
        trips = self.trips
        return math.prod(trips.values()) if len(trips) == len(self.loops) else None


def label(node: Node, position: int) -> str:
    """The node's part of a path."""
    match node:
        case Kernel() | Split():
            return node.name
        case Loop():
            return node.variable
        case Call():
            return f"{position}:call {node.function}"
        case Instruction():
            return f"{position}:{node.mnemonic}"
        case _:
            return f"{position}:{type(node).__name__.lower()}"


def children(node: Node) -> tuple[Node, ...]:
    """The nodes within a node, in order of their execution."""
    match node:
        case Loop() | Kernel():
            return node.body
        case While():
            return node.condition + node.body
        case If():
            return node.then + node.otherwise
        case Split():
            return node.kernels
        case _:
            return ()


def is_counted(nodes: Iterable[Node]) -> bool:
    """Whether there are only instructions, and loops whose trips are known."""
    return all(
        isinstance(node, Instruction)
        or (isinstance(node, Loop) and isinstance(node.trips, int) and is_counted(node.body))
        for node in nodes
    )


def leaves(nodes: Iterable[Node]) -> Iterator[Instruction]:
    """The instructions in and below nodes, in program order."""
    for node in nodes:
        if isinstance(node, Instruction):
            yield node
        else:
            yield from leaves(children(node))


def calls(nodes: Iterable[Node]) -> Iterator[Call]:
    """The calls among nodes and in their loops and conditions."""
    for node in nodes:
        if isinstance(node, Call):
            yield node
        elif not isinstance(node, Kernel):
            yield from calls(children(node))


def walk(program: Program) -> Iterator[tuple[Place, Node]]:
    """All nodes, parents before children: first those of functions, then those of the program."""
    return _everywhere(program, with_instructions=True)


def compounds(program: Program) -> Iterator[tuple[Place, Node]]:
    """The nodes of `walk` that are no instructions."""
    return _everywhere(program, with_instructions=False)


def within(place: Place, node: Node, position: int) -> Place:
    """The place of the children of `node`, which is the `position`-th one at `place`."""
    loops = (*place.loops, node) if isinstance(node, Loop) else place.loops
    kernel = node if isinstance(node, Kernel) else place.kernel
    return Place(None, loops, kernel, place.function, place, node, position)


def _everywhere(program: Program, with_instructions: bool) -> Iterator[tuple[Place, Node]]:
    for function in program.functions:
        outermost = Place(function.name, function=function)
        yield from _walk(function.body, outermost, with_instructions)
    yield from _walk(program.body, Place(program.name), with_instructions)


def _walk(
    nodes: tuple[Node, ...], place: Place, with_instructions: bool
) -> Iterator[tuple[Place, Node]]:
    loops, kernel, function = place.loops, place.kernel, place.function
    for position, node in enumerate(nodes):
        if isinstance(node, Instruction):
            if with_instructions:
                yield Place(None, loops, kernel, function, place, node, position), node
            continue
        inner = within(place, node, position)
        is_loop = isinstance(node, Loop)
        yield dataclasses.replace(inner, loops=loops) if is_loop else inner, node
        if below := children(node):
            yield from _walk(below, inner, with_instructions)


def instructions(program: Program) -> Iterator[tuple[Place, Instruction]]:
    """All distinct instructions with their places."""
    return ((place, node) for place, node in walk(program) if isinstance(node, Instruction))


def kernels(program: Program) -> Iterator[tuple[Place, Kernel]]:
    """All distinct kernels with their places."""
    for function in program.functions:
        yield from _kernels(function.body, Place(function.name, function=function))
    yield from _kernels(program.body, Place(program.name))


def _kernels(nodes: tuple[Node, ...], place: Place) -> Iterator[tuple[Place, Kernel]]:
    for position, node in enumerate(nodes):
        if isinstance(node, Instruction | Call):
            continue
        inner = within(place, node, position)
        if isinstance(node, Kernel):
            yield inner, node
        else:
            yield from _kernels(children(node), inner)


def buffers(program: Program) -> Iterator[tuple[Place, Buffer]]:
    """All declared buffers, with the place that declares them."""
    yield from ((Place(program.name), buffer) for buffer in program.buffers)
    for function in program.functions:
        yield from ((Place(function.name), buffer) for buffer in function.parameters)
    yield from ((place, buffer) for place, kernel in kernels(program) for buffer in kernel.buffers)


def control_register(node: Node) -> Register | None:
    """The register that holds a node's trips or condition."""
    match node:
        case Loop(trips=Register() as register):
            return register
        case While() | If():
            return node.register
        case _:
            return None
