"""Kernels without conditions: what has any comes about kernels instead.

Semaphores count; how far they get must be known when a program is written. Behind a condition or a
while it is not, nor behind a loop of unknown length within another loop, so there a kernel ends,
and the next one begins with semaphores at 0. A tile that several of the new kernels use becomes one
of the program. Other loops of unknown length stay in their kernel, between `fences`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from neuronjax.lower.sync.fences import is_open
from neuronjax.lower.write.rebuild import with_bodies, with_buffers
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Kernel, Node, Program
from neuronjax.program.walk import buffers, children, is_counted, kernels, leaves


def segmented(program: Program) -> Program:
    """The program with such kernels taken apart."""
    if all(_is_whole(kernel.body) for _, kernel in kernels(program)):
        return program
    splitter = _Splitter(program)
    functions = tuple(
        dataclasses.replace(function, body=splitter.nodes(function.body))
        for function in program.functions
    )
    body = splitter.nodes(program.body)
    return dataclasses.replace(
        program,
        functions=functions,
        body=body,
        buffers=(*program.buffers, *splitter.promoted),
    )


def _is_whole(nodes: tuple[Node, ...]) -> bool:
    """Whether nodes can be in one kernel: only outermost loops have trips that are unknown."""
    return all(is_counted(node.body if is_open(node) else (node,)) for node in nodes)  # type: ignore[union-attr]


@dataclass(slots=True)
class _Splitter:
    program: Program
    promoted: list[Buffer] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _finished: dict[int, tuple[Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = {buffer.name for _, buffer in buffers(self.program)}

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Nodes about kernels, with kernels taken apart."""
        return tuple(new for node in nodes for new in self._node(node))

    def _node(self, node: Node) -> tuple[Node, ...]:
        if isinstance(node, Kernel):
            if _is_whole(node.body):
                return (node,)
            if id(node) not in self._finished:
                self._finished[id(node)] = self._split(node)
            return self._finished[id(node)]
        return (with_bodies(node, self.nodes),)

    def _split(self, kernel: Kernel) -> tuple[Node, ...]:
        """What takes the place of a kernel."""
        kernel = self._renamed(kernel)
        parts = _parts(kernel, kernel.body)
        used = Counter(name for part in _kernels(parts) for name in _used(part.body))
        outside = {name for name, count in used.items() if count > 1}
        self.promoted += [buffer for buffer in kernel.buffers if buffer.name in outside]
        return _with_tiles(parts, kernel, outside)

    def _renamed(self, kernel: Kernel) -> Kernel:
        """The kernel with names for its tiles that nothing else in the program has."""
        new = {}
        for buffer in kernel.buffers:
            number = len(self._names)
            while f"{buffer.name}_{number}" in self._names:
                number += 1
            self._names.add(f"{buffer.name}_{number}")
            new[buffer.name] = dataclasses.replace(buffer, name=f"{buffer.name}_{number}")
        whole = dataclasses.replace(self.program, functions=(), body=(kernel,))
        (renamed,) = with_buffers(whole, {}, {id(kernel): new}).body
        assert isinstance(renamed, Kernel)
        return renamed


def _parts(kernel: Kernel, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Kernels of what is known, in control that is not."""
    parts: list[Node] = []
    open_: list[Node] = []

    def close() -> None:
        if open_:
            parts.append(dataclasses.replace(kernel, body=tuple(open_)))
            open_.clear()

    for node in nodes:
        if _is_whole((node,)):
            open_.append(node)
        else:
            close()
            parts.append(with_bodies(node, lambda inner: _parts(kernel, inner)))
    close()
    return tuple(parts)


def _kernels(nodes: tuple[Node, ...]) -> Iterator[Kernel]:
    for node in nodes:
        if isinstance(node, Kernel):
            yield node
        else:
            yield from _kernels(children(node))


def _used(nodes: tuple[Node, ...]) -> set[str]:
    return {access.buffer.name for leaf in leaves(nodes) for access in leaf.accesses()}


def _with_tiles(nodes: tuple[Node, ...], kernel: Kernel, outside: set[str]) -> tuple[Node, ...]:
    """The new kernels with the tiles that each of them has for itself."""
    with_tiles: list[Node] = []
    for node in nodes:
        if isinstance(node, Kernel):
            wanted = _used(node.body) - outside
            own = tuple(buffer for buffer in kernel.buffers if buffer.name in wanted)
            with_tiles.append(dataclasses.replace(node, buffers=own))
        else:
            with_tiles.append(with_bodies(node, lambda inner: _with_tiles(inner, kernel, outside)))
    return tuple(with_tiles)
