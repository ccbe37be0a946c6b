"""A program made executable for one core: its tree of nodes, with instructions as functions.

Calls are replaced by the bodies of their functions, bound to the buffers that the call passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from neuronjax.emulate.exchange import Exchange
from neuronjax.emulate.frame import Frame, Number, Values
from neuronjax.emulate.memory import Location, Locations, Memories
from neuronjax.emulate.table import RULES
from neuronjax.emulate.unit import CoreState, HostFunction, Run, Unit
from neuronjax.emulate.window import Form, Forms, Watcher, Window
from neuronjax.errors import EndlessLoopError
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Buffer, Operand, Register
from neuronjax.program.program import Call, If, Kernel, Loop, Node, Program, Split, While
from neuronjax.program.streams import completing, is_static, on_core
from neuronjax.program.walk import Place, within


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An executable instruction: a function, or its side of an exchange."""

    instruction: Instruction
    place: Place
    path: str
    run: Run | None
    exchange: Exchange | None
    #: Name of a semaphore and the count to wait for.
    waits: tuple[tuple[str, Number], ...]
    #: The stream that it completes in, of all of the logical core's.
    stream: str
    #: Places of registers that it reads and writes.
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    locations: Locations
    frame: Frame

    def look(self, access: Access, values: Values) -> np.ndarray:
        """A copy of the elements of one of the instruction's accesses."""
        location = self.locations[access.buffer.name]
        form = Form.of(access, self.frame.limits, merges=False)
        window = Window(self.instruction, access, location, self.frame, self.path, form)
        return window.view(values).copy()

    @property
    def sources(self) -> str:
        """The user's source lines in brackets, for messages."""
        kernel = self.place.kernel
        if kernel is None:
            return ""
        origin = kernel.parts[self.instruction.part] if kernel.parts else kernel
        return f" ({', '.join(origin.sources)})" if origin.sources else ""


MOST_TRIPS = 100_000
"""Trips of a loop that a register decides about; one that goes on then is taken for endless."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopCode:
    """A loop; `place` is the index of its variable in the values, its trip count follows."""

    place: int
    trips: Number
    register: int | None
    body: tuple[Code, ...]
    variable: str

    def goes_on(self, index: int, values: Values) -> bool:
        """Whether there is a trip of that index; if so, the values say that it begins.

        EndlessLoopError: a register has decided so too often.
        """
        count = self.trips(values)
        if index >= count:
            return False
        if index >= MOST_TRIPS and self.register is not None:
            raise EndlessLoopError(
                f"{self.variable}: the loop goes on after {MOST_TRIPS:,} trips, so it is taken for "
                "endless; let its register end it earlier."
            )
        values[self.place], values[self.place + 1] = index, count
        return True

    def indices(self, values: Values) -> Iterator[int]:
        """The indices of its trips, each while the values say that it runs."""
        if self.register is not None:
            yield from itertools.takewhile(lambda i: self.goes_on(i, values), itertools.count())
            return
        values[self.place + 1] = count = self.trips(values)
        for index in range(count):
            values[self.place] = index
            yield index


@dataclass(frozen=True, slots=True, eq=False)
class WhileCode:
    condition: tuple[Code, ...]
    register: int
    body: tuple[Code, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IfCode:
    register: int
    then: tuple[Code, ...]
    otherwise: tuple[Code, ...]


@dataclass(frozen=True, slots=True, eq=False)
class KernelCode:
    """A kernel; `fresh` are its own tiles, which are uninitialised when it starts.

    `streams` are the instructions by the stream that they complete in, each with how often it runs;
    None: a register decides.
    """

    kernel: Kernel
    path: str
    body: tuple[Code, ...]
    fresh: tuple[tuple[Buffer, Location], ...]
    streams: Mapping[str, tuple[tuple[Step, int], ...]] | None


@dataclass(frozen=True, slots=True, eq=False)
class CallCode:
    body: tuple[Code, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SplitCode:
    """Concurrent kernels, the i-th on the i-th physical core."""

    kernels: tuple[KernelCode, ...]
    #: How many of the kernels before may still run.
    overlaps: int


Code = Step | LoopCode | WhileCode | IfCode | KernelCode | CallCode | SplitCode


@dataclass
class Builder:
    """Turns nodes into code."""

    program: Program
    memories: Memories
    core: CoreState
    forms: Forms = field(default_factory=Forms)
    host: HostFunction | None = None
    watcher: Watcher | None = None
    #: Places of the values that are taken.
    size: int = 0
    #: Identity of a kernel in a split -> its core.
    _split_cores: dict[int, int] = field(default_factory=dict)
    #: The physical core whose kernel is being built.
    at: int = 0

    def build(self) -> tuple[Code, ...]:
        """The code of the whole program."""
        registers = {register.name: place for place, register in enumerate(self.program.registers)}
        self.size = len(registers)
        frame = Frame({}, {}, registers, {})
        place = Place(self.program.name)
        return self._nodes(self.program.body, place, frame, self.memories.locations)

    def _nodes(
        self, nodes: tuple[Node, ...], place: Place, frame: Frame, locations: Locations,
        first: int = 0,
    ) -> tuple[Code, ...]:  # fmt: skip
        """Nodes whose positions in paths begin at `first`, as `walk` counts them."""
        return tuple(
            _BUILDERS.get(type(node), Builder._step)(
                self, node, within(place, node, position), frame, locations
            )
            for position, node in enumerate(nodes, first)
        )

    def _step(self, node: Instruction, place: Place, frame: Frame, locations: Locations) -> Step:
        unit = Unit(
            node, place, frame, locations, self.core, self.program.target.core,
            self.program.ranks, self.forms, self.host, self.watcher,
            self._split_cores.get(id(place.kernel)),
        )  # fmt: skip
        made = RULES[type(node)](node, unit)
        run, exchange = (None, made) if isinstance(made, Exchange) else (made, None)
        waits = tuple((wait.semaphore.name, frame.number(wait.count)) for wait in node.waits)
        reads, writes = (_registers(operands, frame) for operands in (node.reads, node.writes))
        return Step(
            node, place, place.path, run, exchange, waits, on_core(completing(node), self.at),
            reads, writes, locations, frame,
        )  # fmt: skip

    def _loop(self, node: Loop, place: Place, frame: Frame, locations: Locations) -> LoopCode:
        variable = self.size
        self.size += 2
        body = self._nodes(node.body, place, frame.within(node, variable), locations)
        register = None if isinstance(node.trips, int) else frame.registers[node.trips.name]
        trips = node.trips if isinstance(node.trips, int) else 0
        read = _reader(register) if register is not None else (lambda _: trips)
        return LoopCode(variable, read, register, body, node.variable)

    def _while(self, node: While, place: Place, frame: Frame, locations: Locations) -> WhileCode:
        condition = self._nodes(node.condition, place, frame, locations)
        body = self._nodes(node.body, place, frame, locations, len(node.condition))
        return WhileCode(condition, frame.registers[node.register.name], body)

    def _if(self, node: If, place: Place, frame: Frame, locations: Locations) -> IfCode:
        then = self._nodes(node.then, place, frame, locations)
        otherwise = self._nodes(node.otherwise, place, frame, locations, len(node.then))
        return IfCode(frame.registers[node.register.name], then, otherwise)

    def _split(self, node: Split, place: Place, frame: Frame, locations: Locations) -> SplitCode:
        if len(node.kernels) > 1:
            self._split_cores |= {id(kernel): core for core, kernel in enumerate(node.kernels)}
        return SplitCode(
            tuple(
                self._kernel(kernel, within(place, kernel, core), frame, locations, core)
                for core, kernel in enumerate(node.kernels)
            ),
            node.overlaps,
        )

    def _kernel(
        self, node: Kernel, place: Place, frame: Frame, locations: Locations, core: int = 0
    ) -> KernelCode:
        inner = self.memories.locate(node.buffers, locations, place.path, core)
        self.at = core
        body = self._nodes(node.body, place, frame, inner)
        self.at = 0
        aliased = self.memories.aliased
        fresh = tuple(
            (buffer, inner[buffer.name]) for buffer in node.buffers if buffer.name not in aliased
        )
        streams = _streams(body) if is_static(node.body) else None
        return KernelCode(node, place.path, body, fresh, streams)

    def _call(self, node: Call, place: Place, frame: Frame, locations: Locations) -> CallCode:
        function = next(
            function for function in self.program.functions if function.name == node.function
        )
        bound: Mapping[str, Location] = {
            **self.memories.locations,
            **{
                parameter.name: locations[argument.name]
                for parameter, argument in zip(function.parameters, node.arguments, strict=True)
            },
        }
        return CallCode(self._nodes(function.body, place, frame, bound))


def _streams(body: tuple[Code, ...]) -> Mapping[str, tuple[tuple[Step, int], ...]]:
    """The steps of each stream in the order of the text, and how often they run."""
    streams: dict[str, list[tuple[Step, int]]] = {}

    def add(codes: tuple[Code, ...], times: int) -> None:
        for code in codes:
            if isinstance(code, Step):
                streams.setdefault(code.stream, []).append((code, times))
            elif isinstance(code, LoopCode):
                add(code.body, times * code.trips([]))

    add(body, 1)
    return {name: tuple(steps) for name, steps in streams.items()}


def _registers(operands: Callable[[], Iterable[Operand]], frame: Frame) -> tuple[int, ...]:
    if not frame.registers:
        return ()
    names = {operand.name for operand in operands() if isinstance(operand, Register)}
    return tuple(sorted(frame.registers[name] for name in names))


def _reader(place: int) -> Number:
    def read(values: Values) -> int:
        return values[place]

    return read


_BUILDERS: Mapping[type, Callable[..., Code]] = {
    Loop: Builder._loop,
    While: Builder._while,
    If: Builder._if,
    Kernel: Builder._kernel,
    Call: Builder._call,
    Split: Builder._split,
}
