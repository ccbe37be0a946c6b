"""Reads a kernel's instructions in program order, for engines that execute them out of order.

Registers are virtual: an instruction gets the value that the last write before it in program order
leaves. Where control flow depends on a register, reading waits until its value is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronjax.emulate.clocks import Clock
from neuronjax.emulate.code import CallCode, Code, IfCode, KernelCode, LoopCode, Step, WhileCode
from neuronjax.emulate.fabric import Ticket
from neuronjax.emulate.frame import Values
from neuronjax.emulate.races import Event


@dataclass(eq=False)
class Entry:
    """An instruction to execute, with its own copy of loop variables and registers."""

    step: Step
    values: Values
    #: Place of a register that it reads -> the entry that writes it.
    writers: Mapping[int, Entry]
    #: What all engines have seen when it is read.
    control: Clock
    event: Event | None = None
    ticket: Ticket | None = None
    #: What the engine had seen when it began the transfer, this beginning included.
    begun: Clock = field(default_factory=Clock)
    #: The engine that began the transfer, and the number of that event.
    feeder: str = ""
    fed: int = 0
    is_done: bool = False
    #: The run of the kernel that it belongs to.
    kernel: Any = None


@dataclass
class Reader:
    """Reads the code of a kernel. `values` are those it begins with, and change while it reads."""

    code: KernelCode
    values: Values
    #: What all engines have seen: kernels that are over, and what decided about a register.
    control: Clock = field(default_factory=Clock)
    #: Place of a register -> the last entry so far that writes it.
    writers: dict[int, Entry] = field(default_factory=dict)
    is_done: bool = False
    _entries: Iterator[Entry | None] | None = None

    def next(self) -> Entry | None:
        """The next instruction; None at the end, or while control flow waits for a register."""
        if self._entries is None:
            self._entries = self._read(self.code.body)
        try:
            return None if self.is_done else next(self._entries)
        except StopIteration:
            self.is_done = True
            return None

    def finish(self, values: Values) -> None:
        """Copies the final values of registers back to the core's values."""
        for place, writer in self.writers.items():
            values[place] = writer.values[place]

    def _read(self, codes: Sequence[Code]) -> Generator[Entry | None, None, None]:
        """Instructions in program order; None while control flow waits for a register."""
        for code in codes:
            if isinstance(code, Step):
                yield self._entry(code)
            else:
                yield from _READERS[type(code)](self, code)

    def _entry(self, step: Step) -> Entry:
        writers = {place: self.writers[place] for place in step.reads if place in self.writers}
        entry = Entry(step, list(self.values), writers, self.control)
        for place in step.writes:
            self.writers[place] = entry
        return entry

    def _decided(self, register: int) -> Generator[None, None, None]:
        """Waits until the value of a register is known; all engines see it from now on."""
        writer = self.writers.get(register)
        if writer is None:
            return
        while not writer.is_done:
            yield None
        self.values[register] = writer.values[register]
        if writer.event is not None:
            self.control = self.control.copy()
            self.control.join(writer.event.after())

    def _read_loop(self, loop: LoopCode) -> Generator[Entry | None, None, None]:
        for index in itertools.count():
            if loop.register is not None:
                yield from self._decided(loop.register)
            if not loop.goes_on(index, self.values):
                return
            yield from self._read(loop.body)

    def _read_while(self, node: WhileCode) -> Generator[Entry | None, None, None]:
        while True:
            yield from self._read(node.condition)
            yield from self._decided(node.register)
            if not self.values[node.register]:
                return
            yield from self._read(node.body)

    def _read_if(self, node: IfCode) -> Generator[Entry | None, None, None]:
        yield from self._decided(node.register)
        yield from self._read(node.then if self.values[node.register] else node.otherwise)

    def _read_call(self, node: CallCode | KernelCode) -> Generator[Entry | None, None, None]:
        yield from self._read(node.body)


_READERS: Mapping[type, Callable[..., Generator[Entry | None, None, None]]] = {
    LoopCode: Reader._read_loop,
    WhileCode: Reader._read_while,
    IfCode: Reader._read_if,
    CallCode: Reader._read_call,
    KernelCode: Reader._read_call,
}
