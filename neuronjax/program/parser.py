"""Parses program text. `text` describes the language."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

from neuronjax.errors import MalformedProgramError, UnknownFormatError, quoted
from neuronjax.program.element_types import ElementType, element_type_named
from neuronjax.program.field_types import conforms, describe, field_hints
from neuronjax.program.instruction import Instruction, Semaphore
from neuronjax.program.operand import Buffer, Kind, Memory, Register
from neuronjax.program.program import (
    Alias,
    Call,
    Function,
    If,
    Kernel,
    Loop,
    Node,
    Part,
    Program,
    Split,
    Target,
    While,
)
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.tokens import Cursor, Token
from neuronjax.program.value_parser import Names, parse_value

_T = TypeVar("_T")
_MEMORIES = tuple(memory.value for memory in Memory)
_HINTS = {name: field_hints(kind) for name, kind in INSTRUCTIONS.items()}


def parse_program(text: str) -> Program:
    """Parses a program. ProgramSyntaxError: the text is not one; the message says where and why."""
    cursor = Cursor(text)
    program = _Parser(cursor).program()
    if cursor.current.kind != "end":
        cursor.fail(f"expected the end, found {cursor.current.text!r}")
    return program


class _Parser:
    """Recursive descent, with one method per construct."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.names = Names()

    def make(self, start: Token, record: Callable[..., _T], /, **values: Any) -> _T:
        """Constructs a record; its errors are reported at the position of `start`."""
        try:
            return record(**values)
        except MalformedProgramError as error:
            self.cursor.fail(str(error).rstrip("."), start)

    def program(self) -> Program:
        cursor = self.cursor
        cursor.expect("program")
        name = cursor.string()
        cursor.expect("target")
        chip = cursor.word("a chip")
        cursor.expect("lnc")
        target = Target(chip, cursor.integer())
        ranks = cursor.integer() if cursor.accept("ranks") else 1
        cursor.expect("{")
        registers = self.many(("register",), self.register)
        buffers = self.buffers()
        aliases = self.many(("alias",), self.alias)
        functions = self.many(("function",), self.function)
        return Program(
            name=name,
            target=target,
            registers=registers,
            buffers=buffers,
            aliases=aliases,
            functions=functions,
            body=self.nodes(),
            ranks=ranks,
        )

    def many(self, words: tuple[str, ...], parse: Callable[[], _T]) -> tuple[_T, ...]:
        """Parses constructs for as long as they begin with one of the words."""
        constructs = []
        while self.cursor.sees(*words):
            constructs.append(parse())
        return tuple(constructs)

    def register(self) -> Register:
        start = self.cursor.take()
        self.cursor.expect("$")
        name = self.cursor.word()
        limit = self.cursor.integer() if self.cursor.accept("limit") else None
        usual = self.cursor.integer() if self.cursor.accept("usual") else None
        register = Register(name, limit, usual)
        self.declare(self.names.registers, name, register, start)
        return register

    def declare(self, known: MutableMapping[str, _T], name: str, value: _T, start: Token) -> None:
        if name in known:
            self.cursor.fail(f"{name!r} is declared twice", start)
        known[name] = value

    def buffers(self) -> tuple[Buffer, ...]:
        return self.many(_MEMORIES, self.buffer)

    def buffer(self) -> Buffer:
        cursor = self.cursor
        start = cursor.current
        if not cursor.sees(*_MEMORIES):
            cursor.fail(f"expected {', '.join(_MEMORIES)}, found {quoted(start.text)}")
        memory = Memory(cursor.take().text)
        cursor.expect("%")
        name = cursor.word()
        cursor.expect(":")
        dtype = self.element_type()
        shape = self.listed("[", "]", cursor.integer)
        options: dict[str, Any] = {}
        if cursor.current.text in {kind.value for kind in Kind}:
            options["kind"] = Kind(cursor.take().text)
        for word, field in (("partition", "partition"), ("slots", "slots"),
                            ("stride", "slot_stride"), ("@", "address")):  # fmt: skip
            if cursor.accept(word):
                options[field] = cursor.integer()
        if cursor.accept("data"):
            options["data"] = self.data()
        buffer = self.make(
            start, Buffer, name=name, memory=memory, dtype=dtype, shape=shape, **options
        )
        self.declare(self.names.buffers, name, buffer, start)
        return buffer

    def data(self) -> bytes:
        start = self.cursor.current
        try:
            return bytes.fromhex(self.cursor.string())
        except ValueError:
            self.cursor.fail("data is a string of hexadecimal digits, two for each byte", start)

    def element_type(self) -> ElementType:
        start = self.cursor.current
        try:
            return element_type_named(self.cursor.word("an element type"))
        except UnknownFormatError as error:
            self.cursor.fail(str(error).rstrip("."), start)

    def listed(self, left: str, right: str, parse: Callable[[], _T]) -> tuple[_T, ...]:
        """Parses constructs between two marks, separated by commas."""
        self.cursor.expect(left)
        constructs: list[_T] = []
        while not self.cursor.sees(right):
            if constructs:
                self.cursor.expect(",")
            constructs.append(parse())
        self.cursor.expect(right)
        return tuple(constructs)

    def alias(self) -> Alias:
        self.cursor.take()
        self.cursor.expect("%")
        buffer = self.cursor.word()
        self.cursor.expect("=")
        self.cursor.expect("%")
        return Alias(buffer, self.cursor.word())

    def function(self) -> Function:
        self.cursor.take()
        self.cursor.expect("@")
        name = self.cursor.word()
        outside, self.names = self.names, self.names.inner()
        parameters = self.listed("(", ")", self.buffer)
        function = Function(name=name, parameters=parameters, body=self.block())
        self.names = outside
        return function

    def block(self) -> tuple[Node, ...]:
        self.cursor.expect("{")
        return self.nodes()

    def nodes(self) -> tuple[Node, ...]:
        """Parses nodes up to and including the closing brace."""
        nodes = []
        while not self.cursor.accept("}"):
            nodes.append(self.node())
        return tuple(nodes)

    def node(self) -> Node:
        start = self.cursor.current
        word = self.cursor.word(
            "an instruction, 'loop', 'while', 'if', 'call', 'kernel', 'split' or '}'"
        )
        if word in INSTRUCTIONS:
            return self.instruction(start, INSTRUCTIONS[word])
        if word not in _CONTROL:
            self.cursor.fail(f"there is no instruction {word!r}", start)
        return _CONTROL[word](self)

    def loop(self) -> Loop:
        start = self.cursor.current
        variable = self.cursor.word("a loop variable")
        self.cursor.expect("in")
        trips = self.named_register() if self.cursor.sees("$") else self.cursor.integer()
        return self.make(start, Loop, variable=variable, trips=trips, body=self.block())

    def named_register(self) -> Register:
        self.cursor.expect("$")
        return self.names.find(self.cursor, self.names.registers, "register")

    def while_(self) -> While:
        condition = self.block()
        self.cursor.expect("do")
        register = self.named_register()
        return While(condition=condition, register=register, body=self.block())

    def if_(self) -> If:
        is_usual = self.cursor.accept("usually")
        register = self.named_register()
        then = self.block()
        otherwise = self.block() if self.cursor.accept("else") else ()
        return If(register=register, then=then, otherwise=otherwise, is_usual=is_usual)

    def call(self) -> Call:
        self.cursor.expect("@")
        function = self.cursor.word()
        return Call(function=function, arguments=self.listed("(", ")", self.named_buffer))

    def named_buffer(self) -> Buffer:
        self.cursor.expect("%")
        return self.names.find(self.cursor, self.names.buffers, "buffer")

    def kernel(self) -> Kernel:
        cursor = self.cursor
        title = self.title()
        overlaps = cursor.integer() if cursor.accept("overlaps") else 0
        cursor.expect("{")
        outside, self.names = self.names, self.names.inner()
        parts = self.many(("part",), self.part)
        semaphores = self.many(("semaphore",), self.semaphore)
        kernel = Kernel(
            name=title.name,
            semaphores=semaphores,
            buffers=self.buffers(),
            body=self.nodes(),
            operations=title.operations,
            sources=title.sources,
            parts=parts,
            overlaps=overlaps,
        )
        self.names = outside
        return kernel

    def title(self) -> Part:
        """Parses a name, with operations and sources."""
        name = self.cursor.string()
        operations = self.strings() if self.cursor.accept("operations") else ()
        sources = self.strings() if self.cursor.accept("sources") else ()
        return Part(name, operations, sources)

    def part(self) -> Part:
        self.cursor.take()
        return self.title()

    def split(self) -> Split:
        name = self.cursor.string()
        self.cursor.expect("{")
        kernels = self.many(("kernel",), self.next_kernel)
        self.cursor.expect("}")
        return Split(name=name, kernels=kernels)

    def next_kernel(self) -> Kernel:
        self.cursor.take()
        return self.kernel()

    def strings(self) -> tuple[str, ...]:
        return self.listed("(", ")", self.cursor.string)

    def semaphore(self) -> Semaphore:
        start = self.cursor.take()
        self.cursor.expect("!")
        semaphore = Semaphore(self.cursor.word())
        self.declare(self.names.semaphores, semaphore.name, semaphore, start)
        return semaphore

    def instruction(self, start: Token, kind: type[Instruction]) -> Instruction:
        hints = _HINTS[kind.mnemonic]
        values: dict[str, Any] = {}
        while self.cursor.current.kind == "word" and self.cursor.lookahead.text == "=":
            at = self.cursor.current
            name = self.cursor.word()
            if name not in hints:
                self.cursor.fail(f"{kind.mnemonic} has no field {name!r}", at)
            self.cursor.expect("=")
            value = parse_value(self.cursor, hints[name], self.names)
            if not conforms(value, hints[name]):
                self.cursor.fail(
                    f"field {name!r} of {kind.mnemonic} takes {describe(hints[name])}", at
                )
            self.declare(values, name, value, at)
        missing = [
            field.name
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.name not in values
        ]
        if missing:
            self.cursor.fail(f"{kind.mnemonic} lacks {', '.join(missing)}", start)
        return self.make(start, kind, **values)


_CONTROL: dict[str, Callable[[_Parser], Node]] = {
    "loop": _Parser.loop,
    "while": _Parser.while_,
    "if": _Parser.if_,
    "call": _Parser.call,
    "kernel": _Parser.kernel,
    "split": _Parser.split,
}
