"""Prints programs as text. `text` describes the language."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from neuronjax.program.affine import ZERO, Affine, First, Last
from neuronjax.program.instruction import After, Instruction, Signal, Wait
from neuronjax.program.operand import (
    Access,
    Buffer,
    Dim,
    Immediate,
    Kind,
    Register,
    RegisterOffset,
)
from neuronjax.program.program import (
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Part,
    Program,
    Split,
    While,
)

_INDENT = "  "


def print_program(program: Program) -> str:
    """The text of a program, with a newline at its end."""
    target = program.target
    head = f"program {_string(program.name)} target {target.chip} lnc {target.lnc}"
    ranks = f" ranks {program.ranks}" if program.ranks != 1 else ""
    lines = [
        *map(_register_line, program.registers),
        *map(print_buffer, program.buffers),
        *(f"alias %{alias.buffer} = %{alias.of}" for alias in program.aliases),
        *(line for function in program.functions for line in _function(function)),
        *_nodes(program.body),
    ]
    return "\n".join(_block(head + ranks, lines)) + "\n"


def print_instruction(instruction: Instruction) -> str:
    """An instruction as one line of text; fields at their defaults are left out."""
    given = [
        f"{field.name}={_value(getattr(instruction, field.name))}"
        for field in dataclasses.fields(instruction)
        if not _is_default(field, getattr(instruction, field.name))
    ]
    given.sort(key=lambda field: field.startswith(("waits=", "signals=", "after=", "part=")))
    return " ".join([instruction.mnemonic, *given])


def print_buffer(buffer: Buffer) -> str:
    """The declaration of a buffer."""
    shape = ", ".join(map(str, buffer.shape))
    options = {
        buffer.kind.value: buffer.kind is not Kind.SCRATCH,
        f"partition {buffer.partition}": buffer.partition != 0,
        f"slots {buffer.slots}": buffer.slots != 1,
        f"stride {buffer.slot_stride}": buffer.slot_stride is not None,
        f"@{buffer.address}": buffer.address is not None,
        f"data {json.dumps((buffer.data or b'').hex())}": buffer.data is not None,
    }
    given = [f" {option}" for option, is_given in options.items() if is_given]
    return f"{buffer.memory.value} %{buffer.name} : {buffer.dtype.name}[{shape}]{''.join(given)}"


def print_access(access: Access) -> str:
    """An access: ``%buffer{slot}<partition, partitions>[offset; stride:size, …] as dtype``."""
    slot = f"{{{_affine(access.slot)}}}" if access.slot != ZERO else ""
    lanes = ""
    if access.partition != ZERO or access.partitions != 1:
        lanes = f"<{_affine(access.partition)}, {access.partitions}>"
    dims = ", ".join(map(_dim, access.dims))
    walk = f"[{_offset(access.offset)}; {dims}]" if dims else f"[{_offset(access.offset)}]"
    cast = f" as {access.dtype.name}" if access.dtype is not None else ""
    return f"%{access.buffer.name}{slot}{lanes}{walk}{cast}"


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default
    return default is not dataclasses.MISSING and value == default and type(value) is type(default)


def _block(head: str, lines: Iterable[str]) -> list[str]:
    return [head + " {", *(_INDENT + line for line in lines), "}"]


def _nodes(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        yield from _node(node)


def _node(node: Node) -> list[str]:
    match node:
        case Instruction():
            return [print_instruction(node)]
        case Loop():
            trips = node.trips if isinstance(node.trips, int) else f"${node.trips.name}"
            return _block(f"loop {node.variable} in {trips}", _nodes(node.body))
        case While():
            *condition, _ = _block("while", _nodes(node.condition))
            return [*condition, *_block(f"}} do ${node.register.name}", _nodes(node.body))]
        case If():
            usually = "usually " if node.is_usual else ""
            *then, end = _block(f"if {usually}${node.register.name}", _nodes(node.then))
            if not node.otherwise:
                return [*then, end]
            return [*then, *_block("} else", _nodes(node.otherwise))]
        case Call():
            given = ", ".join(f"%{buffer.name}" for buffer in node.arguments)
            return [f"call @{node.function}({given})"]
        case Kernel():
            return _kernel(node)
        case Split():
            return _block(f"split {_string(node.name)}", _nodes(node.kernels))


def _kernel(kernel: Kernel) -> list[str]:
    head = f"kernel {_title(kernel)}"
    if kernel.overlaps:
        head += f" overlaps {kernel.overlaps}"
    lines = [
        *(f"part {_title(part)}" for part in kernel.parts),
        *(f"semaphore !{semaphore.name}" for semaphore in kernel.semaphores),
        *map(print_buffer, kernel.buffers),
        *_nodes(kernel.body),
    ]
    return _block(head, lines)


def _title(named: Kernel | Part) -> str:
    head = _string(named.name)
    for word, names in (("operations", named.operations), ("sources", named.sources)):
        head += f" {word} {_value(names)}" if names else ""
    return head


def _function(function: Function) -> list[str]:
    given = map(print_buffer, function.parameters)
    return _block(f"function @{function.name}({', '.join(given)})", _nodes(function.body))


def _register_line(register: Register) -> str:
    limit = f" limit {register.limit}" if register.limit is not None else ""
    usual = f" usual {register.usual}" if register.usual is not None else ""
    return f"register ${register.name}{limit}{usual}"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _affine(value: Affine) -> str:
    parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in value.terms]
    if value.base or not parts:
        parts.append(str(value.base))
    return " + ".join(parts)


def _offset(offset: Affine | RegisterOffset) -> str:
    if isinstance(offset, Affine):
        return _affine(offset)
    base = f" + {_affine(offset.base)}" if offset.base != ZERO else ""
    return f"{offset.stride}*${offset.register.name}{base}"


def _dim(dim: Dim) -> str:
    return f"{dim.stride}:{dim.size}"


def _immediate(number: Immediate) -> str:
    return f"#{number.value!r}" + (f" as {number.element_type.name}" if number.element_type else "")


def print_after(after: After) -> str:
    """What an instruction comes after."""
    left = f" but {after.left}" if after.left else ""
    return f"@{after.stream} - {after.back}{left}"


_PRINTERS: dict[type, Callable[[Any], str]] = {
    Access: print_access,
    After: print_after,
    Affine: _affine,
    Dim: _dim,
    First: lambda flag: f"first({', '.join(flag.variables)})",
    Immediate: _immediate,
    Last: lambda flag: f"last({', '.join(flag.variables)})",
    Register: lambda register: f"${register.name}",
    Signal: lambda signal: f"!{signal.semaphore.name} += {signal.by}",
    Wait: lambda wait: f"!{wait.semaphore.name} >= {_affine(wait.count)}",
    bool: lambda value: "true" if value else "false",
    int: str,
    str: _string,
    tuple: lambda values: f"({', '.join(map(_value, values))})",
    type(None): lambda _: "none",
}


def _value(value: Any) -> str:
    """The value of a field."""
    return value.value if isinstance(value, enum.Enum) else _PRINTERS[type(value)](value)
