"""Neighbouring kernels of which neither needs the other, each on a core of its own.

They are kernels that did not come apart, or would hardly have gained: such are the products that
make queries and keys of one token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.lower.cores.split import CORES, is_plain
from neuronjax.lower.write.rebuild import mapped, on_buffers, with_bodies
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Kind, Register
from neuronjax.program.program import (
    Call,
    Function,
    Kernel,
    Node,
    Part,
    Program,
    Split,
)
from neuronjax.program.walk import calls, leaves

Nodes = tuple[Node, ...]


def beside(program: Program) -> Program:
    """The program with independent neighbours on both physical cores of a logical one.

    Call it before `allocate`, after `join`. Programs of one core for each logical one stay as they
    are.
    """
    if program.target.lnc != CORES:
        return program
    return _Pairing(program).run()


@dataclass(frozen=True, slots=True)
class _Single:
    """A kernel at a place, and what it touches in HBM there."""

    node: Call | Kernel
    kernel: Kernel
    #: The names of the buffers that the kernel is written on -> those of the place.
    given: Mapping[str, Buffer]
    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def key(self) -> str | int:
        """What is equal for kernels of equal instructions."""
        return self.node.function if isinstance(self.node, Call) else id(self.node)


class _Pairing:
    """The walk through a program that pairs kernels."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions = {function.name: function for function in program.functions}
        self.on_chip = frozenset(buffer.name for buffer in program.buffers if buffer.on_chip)
        self.aliases = {alias.buffer: alias.of for alias in program.aliases}
        self.made: dict[tuple[object, ...], Function] = {}
        self.suited: dict[int, bool] = {}

    def run(self) -> Program:
        """The program, its functions those that it calls."""
        body = self._nodes(self.program.body)
        called = {call.function for call in calls(body)}
        functions = (*self.program.functions, *self.made.values())
        kept = tuple(function for function in functions if function.name in called)
        return dataclasses.replace(self.program, functions=kept, body=body)

    def _nodes(self, nodes: Nodes) -> Nodes:
        placed: list[Node] = []
        before: _Single | None = None
        for node in nodes:
            single = self._single(node)
            if before is not None and single is not None and _are_independent(before, single):
                placed[-1] = self._pair(before, single)
                before = None
                continue
            placed.append(with_bodies(node, self._nodes))
            before = single
        return tuple(placed)

    def _single(self, node: Node) -> _Single | None:
        """A kernel that may run beside another one."""
        given: dict[str, Buffer] = {}
        kernel: Node = node
        if isinstance(node, Call):
            function = self.functions[node.function]
            (kernel, *others) = function.body
            if others:
                return None
            names = (parameter.name for parameter in function.parameters)
            given = dict(zip(names, node.arguments, strict=True))
        if not isinstance(kernel, Kernel) or not self._is_suited(kernel):
            return None
        assert isinstance(node, Call | Kernel)
        uses = [use for leaf in leaves(kernel.body) for use in leaf.uses()]
        own = {buffer.name for buffer in kernel.buffers}
        touched: tuple[set[str], set[str]] = (set(), set())
        for use in uses:
            if not isinstance(use.operand, Access) or use.operand.buffer.name in own:
                continue
            buffer = given.setdefault(use.operand.buffer.name, use.operand.buffer)
            for names_of, is_so in zip(touched, (use.role.is_read, use.role.is_write), strict=True):
                names_of.update([self._root(buffer.name)] if is_so else [])
        return _Single(node, kernel, given, *map(frozenset, touched))

    def _is_suited(self, kernel: Kernel) -> bool:
        """Whether it concerns one core only: registers are every core's own."""
        if id(kernel) not in self.suited:
            operands = (use.operand for leaf in leaves(kernel.body) for use in leaf.uses())
            self.suited[id(kernel)] = is_plain(kernel.body, self.on_chip) and not any(
                isinstance(operand, Register) for operand in operands
            )
        return self.suited[id(kernel)]

    def _root(self, name: str) -> str:
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def _pair(self, first: _Single, second: _Single) -> Node:
        """Both kernels: a call of a function, unless one of them is written for this place alone
        and may be within loops whose counters it takes."""
        singles = (first, second)
        distinct = {b.name: b for single in singles for b in single.given.values()}
        scopes = tuple(scope for single in singles for scope in _scopes(single))
        if any(isinstance(single.node, Kernel) for single in singles):
            return _split(singles, distinct, scopes)
        numbers = {name: number for number, name in enumerate(distinct)}
        pattern = tuple(numbers[b.name] for single in singles for b in single.given.values())
        key = (first.key, second.key, pattern)
        if key not in self.made:
            self.made[key] = _function(singles, distinct, len(self.made) + 1)
        return Call(function=self.made[key].name, arguments=tuple(distinct.values()), scopes=scopes)


def _function(
    singles: tuple[_Single, _Single], distinct: Mapping[str, Buffer], number: int
) -> Function:
    parameters = {
        name: dataclasses.replace(
            buffer, name=f"p{index}", kind=Kind.SCRATCH, data=None, address=None
        )
        for index, (name, buffer) in enumerate(distinct.items())
    }
    split = _split(singles, parameters, ())
    name = f"{split.kernels[0].name}_beside_{number}"
    return Function(name=name, parameters=tuple(parameters.values()), body=(split,))


def _split(
    singles: tuple[_Single, _Single], buffers: Mapping[str, Buffer], scopes: tuple[str, ...]
) -> Split:
    """The kernels side by side, on the buffers that stand for those of their place."""
    parts = tuple(part for single in singles for part in _parts(single.kernel))
    operations = tuple(dict.fromkeys(n for single in singles for n in single.kernel.operations))
    sources = tuple(dict.fromkeys(n for single in singles for n in single.kernel.sources))
    before = (0, len(_parts(singles[0].kernel)))
    kernels = tuple(
        dataclasses.replace(
            on_buffers(
                _later(single.kernel, shift),
                {own: buffers[buffer.name] for own, buffer in single.given.items()},
            ),
            operations=operations,
            sources=sources,
            parts=parts,
            scopes=scopes,
        )
        for single, shift in zip(singles, before, strict=True)
    )
    first, second = (kernel.name for kernel in kernels)
    return Split(name=f"{first} beside {second}", kernels=kernels)


def _are_independent(first: _Single, second: _Single) -> bool:
    touched = second.reads | second.writes
    return first.writes.isdisjoint(touched) and first.reads.isdisjoint(second.writes)


def _parts(kernel: Kernel) -> tuple[Part, ...]:
    return kernel.parts or (Part(kernel.name, kernel.operations, kernel.sources),)


def _scopes(single: _Single) -> tuple[str, ...]:
    """The user's name scope of each part."""
    count = len(_parts(single.kernel))
    scopes = single.node.scopes
    return (*scopes, *("",) * (count - len(scopes)))[:count]


def _later(kernel: Kernel, shift: int) -> Kernel:
    """A kernel whose parts come after so many others."""
    if not shift:
        return kernel
    body = mapped(kernel.body, Instruction, lambda node: node.with_part(node.part + shift))
    return dataclasses.replace(kernel, body=body)
