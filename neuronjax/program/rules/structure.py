"""Names and nesting: everything is declared once, used in scope, and in the right place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from neuronjax.option_values import MOST_CORES
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Buffer, Memory, Register
from neuronjax.program.program import Call, Function, Kernel, Loop, Node, Program, Split
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import (
    Place,
    children,
    compounds,
    control_register,
    instructions,
    kernels,
    walk,
)


def unique_names(program: Program) -> Iterator[Violation]:
    """Buffers in scope, registers, functions, and nested loops have unique names."""
    shared = [buffer.name for buffer in program.buffers]
    yield from _twice(program.name, shared)
    yield from _twice(program.name, [register.name for register in program.registers])
    yield from _twice(program.name, [function.name for function in program.functions])
    parameters: dict[str, list[str]] = {}
    for function in program.functions:
        parameters[function.name] = [buffer.name for buffer in function.parameters]
        yield from _twice(function.name, shared + parameters[function.name])
    for place, kernel in kernels(program):
        own = parameters[place.function.name] if place.function else []
        yield from _twice(place.path, shared + own + [buffer.name for buffer in kernel.buffers])
        yield from _twice(place.path, [semaphore.name for semaphore in kernel.semaphores])
    for place, node in compounds(program):
        if isinstance(node, Loop) and node.variable in [loop.variable for loop in place.loops]:
            yield Violation(place.path, f"loop {node.variable} within itself", "another variable")


def _twice(path: str, names: list[str]) -> Iterator[Violation]:
    for name, count in Counter(names).items():
        if count > 1:
            yield Violation(path, f"{name} is declared {count} times", "once")


def declared(program: Program) -> Iterator[Violation]:
    """Buffers and registers that are used, and names of aliases, are declared in scope."""
    known_registers = set(program.registers)
    every = {buffer.name for buffer in program.buffers}
    every |= {buffer.name for _, kernel in kernels(program) for buffer in kernel.buffers}
    for alias in program.aliases:
        for name in (alias.buffer, alias.of):
            if name not in every:
                yield Violation(program.name, f"alias of %{name}", "a buffer")
    shared = set(program.buffers)
    in_scope: dict[tuple[int, int], set[Buffer]] = {}
    for place, node in walk(program):
        scope = id(place.function), id(place.kernel)
        if scope not in in_scope:
            in_scope[scope] = shared.union(_own(place))
        for buffer in _buffers_of(node):
            if buffer not in in_scope[scope]:
                yield Violation(place.path, f"%{buffer.name} is not declared", "a declaration")
        for register in _registers_of(node):
            if register not in known_registers:
                yield Violation(place.path, f"${register.name} is not declared", "a declaration")


def _own(place: Place) -> tuple[Buffer, ...]:
    parameters = place.function.parameters if place.function else ()
    return (*parameters, *(place.kernel.buffers if place.kernel else ()))


def _buffers_of(node: Node) -> Iterable[Buffer]:
    if isinstance(node, Instruction):
        return dict.fromkeys([access.buffer for access in node.accesses()])
    return node.arguments if isinstance(node, Call) else ()


def _registers_of(node: Node) -> Iterable[Register]:
    if isinstance(node, Instruction):
        return node.registers()
    register = control_register(node)
    return (register,) if register else ()


def variables(program: Program) -> Iterator[Violation]:
    """A loop variable is only used within its loop."""
    for place, instruction in instructions(program):
        used = instruction.variables()
        if used:
            known = {loop.variable for loop in place.loops}
            for name in sorted(used - known):
                yield Violation(place.path, f"{name} outside of a loop over it", "a loop over it")


def nesting(program: Program) -> Iterator[Violation]:
    """Instructions are in kernels; kernels and calls are not."""
    for place, instruction in instructions(program):
        if place.kernel is None:
            yield Violation(place.path, f"{instruction.mnemonic} in no kernel", "a kernel about it")
    for place, kernel in kernels(program):
        if any(isinstance(node, Kernel | Call | Split) for node in _below(kernel)):
            yield Violation(place.path, "a kernel or call in a kernel", "instructions, loops")


def _below(node: Node) -> Iterator[Node]:
    for child in children(node):
        yield child
        yield from _below(child)


def calls(program: Program) -> Iterator[Violation]:
    """A call names an earlier function and passes buffers that match its parameters."""
    known: dict[str, tuple[Buffer, ...]] = {}
    owner: Function | None = None
    for place, node in walk(program):
        if place.function is not owner:
            if owner is not None:
                known[owner.name] = owner.parameters
            owner = place.function
        if isinstance(node, Call):
            yield from _call(place, node, known)


def _call(place: Place, node: Call, known: Mapping[str, tuple[Buffer, ...]]) -> Iterator[Violation]:
    if node.function not in known:
        yield Violation(place.path, f"call of @{node.function}", "a function declared before")
        return
    wanted = [_type(buffer) for buffer in known[node.function]]
    given = [_type(buffer) for buffer in node.arguments]
    if given != wanted:
        yield Violation(place.path, f"arguments {', '.join(given)}", ", ".join(wanted))


def _type(buffer: Buffer) -> str:
    return f"{buffer.memory.value} {buffer.dtype.name}{list(buffer.shape)}"


def roles(program: Program) -> Iterator[Violation]:
    """Arguments, results and constants lie in HBM and have a single slot."""
    for buffer in program.buffers:
        if buffer.kind.value != "scratch" and (buffer.memory is not Memory.HBM or buffer.slots > 1):
            actual = f"{buffer.kind.value} {buffer.name} in {buffer.memory.value}"
            yield Violation(program.name, f"{actual} with {buffer.slots} slots", "hbm, 1 slot")


def ranks(program: Program) -> Iterator[Violation]:
    """The number of ranks is positive and at most that of the largest machine."""
    if not 1 <= program.ranks <= MOST_CORES:
        yield Violation(program.name, f"{program.ranks} ranks", f"1 to {MOST_CORES}")
