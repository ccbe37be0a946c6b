"""Execution in dataflow order: the engines and DMA queues of a core run concurrently.

* An engine executes its instructions in order, each once its waits hold. It only starts transfers;
  they execute on their queue, in order, and read, write and signal at their completion. Collectives
  do the same on their streams.
* Engines go on to the next kernel while those before run, as many as it overlaps; semaphores are
  each kernel's own. Other kernels, and control that a register decides, begin when all engines and
  queues have drained. The kernels of a split run concurrently, each with its own streams.
* Registers are virtual. An instruction gets the value that the last write before it in program
  order leaves, and waits for that write. A loop or condition on a register begins on all engines
  once its value is known, and all of them have then seen the write.

A `Choice` decides which of the streams that can advance is next; see `stream_choice`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neuronjax.emulate.clocks import Clock
from neuronjax.emulate.code import (
    CallCode,
    Code,
    IfCode,
    KernelCode,
    LoopCode,
    SplitCode,
    WhileCode,
)
from neuronjax.emulate.engines import Core, Kernel
from neuronjax.emulate.fabric import Fabric, Member, Running
from neuronjax.emulate.frame import Values
from neuronjax.emulate.hooks import Hooks
from neuronjax.emulate.instruction_reader import Reader
from neuronjax.errors import DeadlockError
from neuronjax.program.instruction import After


class Choice(Protocol):
    """Chooses the next of the streams that can advance."""

    def next(self, engines: Sequence[str], queues: Sequence[str]) -> str:
        """The name of the engine or queue that advances next."""
        ...


@dataclass
class Flight:
    """The kernels of a rank that run at a time, on all physical cores of its logical one."""

    fabric: Fabric
    rank: int
    hooks: Hooks
    choice: Choice
    cores: dict[int, Core] = field(default_factory=dict)
    #: Kernels that run beside each other, by their places in the order of the program.
    groups: deque[tuple[Kernel, ...]] = field(default_factory=deque)
    begun: int = 0
    #: What all that begins now has seen: kernels that are over.
    over: Clock = field(default_factory=Clock)
    #: Kernels that are over, with the place of the last one that began while they ran.
    ended: deque[tuple[int, tuple[Kernel, ...]]] = field(default_factory=deque)

    def begin(self, codes: Sequence[KernelCode], overlaps: int, values: Values) -> Running:
        """Kernels beside each other begin when at most `overlaps` before them still run."""
        yield from self.until(overlaps, values)
        kernels = []
        cores = Fabric(len(codes), member="core") if len(codes) > 1 else None
        for at, code in enumerate(codes):
            if not self.groups:
                self.hooks.begin(code)
            if at not in self.cores:
                prefix = f"core {at} " if at else ""
                self.cores[at] = Core(self.hooks, prefix)
            kernel = Kernel(
                Reader(code, list(values), control=self.over.copy()),
                self.begun,
                at,
                Member(self.fabric, self.rank, cores, at),
            )
            self.cores[at].kernels.append(kernel)
            kernels.append(kernel)
        self.groups.append(tuple(kernels))
        self.begun += 1

    def until(self, most: int, values: Values) -> Running:
        """Lets kernels run until at most so many are left; yields while they wait for other ranks.

        `values` get what the kernels that end leave in registers.

        Raises:
          DeadlockError: all streams wait, and none of them for other ranks.
          CollectiveError: a core waits for another one that never comes.
        """
        while len(self.groups) > most:
            if all(kernel.is_done for kernel in self.groups[0]):
                self._end(values)
                continue
            for core in self.cores.values():
                core.look_ahead()
            if self._advance() or any(core.read_on() for core in self.cores.values()):
                continue
            if all(kernel.is_done for kernel in self.groups[0]):
                continue
            self._wait()
            yield
        if not self.groups and self.ended:
            self._rest()

    def is_complete(self, after: After, number: int) -> bool:
        """Whether all is complete that an instruction of a kernel comes after."""
        last = number - after.back
        return all(
            kernel.has_completed(after.stream, after.left if kernel.number == last else 0)
            for group in self.groups
            for kernel in group
            if kernel.number <= last
        )

    def seen(self, after: After, number: int) -> Clock:
        """What has been seen when all is complete that an instruction of a kernel comes after."""
        last = number - after.back
        ended = (group for _, group in reversed(self.ended))
        for group in (*reversed(self.groups), *ended):
            for kernel in group:
                if kernel.number <= last:
                    event = kernel.end(after.stream, after.left if kernel.number == last else 0)
                    if event is not None:
                        return event.after()
        return Clock()

    def _advance(self) -> bool:
        """Lets one stream take a step; False if none can."""
        engines: list[str] = []
        queues: list[str] = []
        owners: dict[str, Core] = {}
        for core in self.cores.values():
            own_engines, own_queues = core.ready(self)
            engines += own_engines
            queues += own_queues
            owners.update(dict.fromkeys((*own_engines, *own_queues), core))
        if not owners:
            return False
        chosen = self.choice.next(engines, queues)
        owners[chosen].advance(chosen, self)
        return True

    def _wait(self) -> None:
        """Handles that no stream can advance: all is well if some of them wait for other ranks."""
        waiting = [entry for core in self.cores.values() for entry in core.waiting_for_others()]
        if not waiting:
            self._deadlock()
        cores = waiting[0].kernel.member.cores
        exchanges = [entry.step.exchange for entry in waiting]
        if cores is not None and all(e is not None and e.is_between_cores for e in exchanges):
            group = next(group for group in self.groups if waiting[0].kernel in group)
            cores.fail({kernel.core for kernel in group if not kernel.is_done})

    def _end(self, values: Values) -> None:
        """The oldest kernels are over."""
        group = self.groups.popleft()
        codes = [kernel.reader.code for others in self.groups for kernel in others]
        for kernel in group:
            self.cores[kernel.core].kernels.popleft()
            kernel.reader.finish(values)
            if kernel.reader.code not in codes:
                self.hooks.end(kernel.reader.code)
            for event in kernel.last.values():
                self.over.see(event.at, event.number)
        self.ended.append((self.begun, group))
        first = self.groups[0][0].number if self.groups else self.begun
        while self.ended and self.ended[0][0] <= first:
            for kernel in self.ended.popleft()[1]:
                self.hooks.races.forget(kernel.events)

    def _rest(self) -> None:
        self.hooks.races.synchronise()
        self.over = Clock()
        self.ended.clear()
        for core in self.cores.values():
            core.rest()

    def _deadlock(self) -> None:
        """Raises ``DeadlockError``: all streams wait, and none of them for other ranks."""
        stuck = next(k for group in self.groups for k in group if not k.is_done)
        heads = self.cores[stuck.core].heads(self)
        raise DeadlockError(
            f"{stuck.member}: {stuck.reader.code.path} cannot continue."
            f" {'; '.join(heads)}. Send each signal from an instruction that does not itself wait"
            " for it."
        )


@dataclass(frozen=True, slots=True)
class DataflowRunner:
    """Runs a program; `flight` has the kernels that are on their way."""

    flight: Flight

    @classmethod
    def of(cls, fabric: Fabric, rank: int, choice: Choice, hooks: Hooks) -> DataflowRunner:
        """The runner of a rank."""
        return cls(Flight(fabric, rank, hooks, choice))

    def running(self, codes: Sequence[Code], values: Values) -> Running:
        """Executes code to its end; yields while it waits for other ranks."""
        yield from self._nodes(codes, values)
        yield from self.flight.until(0, values)

    def _nodes(self, codes: Sequence[Code], values: Values) -> Running:
        for code in codes:
            yield from _RUNNERS[type(code)](self, code, values)

    def _loop(self, loop: LoopCode, values: Values) -> Running:
        for index in itertools.count():
            if loop.register is not None:
                yield from self.flight.until(0, values)
            if not loop.goes_on(index, values):
                return
            yield from self._nodes(loop.body, values)

    def _while(self, node: WhileCode, values: Values) -> Running:
        while True:
            yield from self._nodes(node.condition, values)
            yield from self.flight.until(0, values)
            if not values[node.register]:
                return
            yield from self._nodes(node.body, values)

    def _if(self, node: IfCode, values: Values) -> Running:
        yield from self.flight.until(0, values)
        yield from self._nodes(node.then if values[node.register] else node.otherwise, values)

    def _call(self, node: CallCode, values: Values) -> Running:
        yield from self._nodes(node.body, values)

    def _kernel(self, code: KernelCode, values: Values) -> Running:
        yield from self.flight.begin((code,), code.kernel.overlaps, values)

    def _split(self, node: SplitCode, values: Values) -> Running:
        yield from self.flight.begin(node.kernels, node.overlaps, values)


_RUNNERS: Mapping[type, Callable[..., Running]] = {
    LoopCode: DataflowRunner._loop,
    WhileCode: DataflowRunner._while,
    IfCode: DataflowRunner._if,
    CallCode: DataflowRunner._call,
    KernelCode: DataflowRunner._kernel,
    SplitCode: DataflowRunner._split,
}
