"""Hooks around instructions and kernels: for checks and for observers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neuronjax.emulate.accumulation_groups import Groups, uses_psum
from neuronjax.emulate.checks import NO_CHECKS, Checks
from neuronjax.emulate.code import KernelCode, Step
from neuronjax.emulate.frame import Values
from neuronjax.emulate.memory import Location
from neuronjax.emulate.races import Event, Races
from neuronjax.emulate.reporter import Reporter
from neuronjax.emulate.uninitialised import Written
from neuronjax.emulate.watchers import watcher_of
from neuronjax.emulate.window import Watcher
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Program

Observe = Callable[[int, Step, Values], None]
"""Called after every instruction with its rank."""


@dataclass
class Hooks:
    """The checks of one rank, and its observer."""

    rank: int
    reporter: Reporter
    races: Races
    written: Written | None = None
    groups: Groups | None = None
    observe: Observe | None = None
    #: What looks at accesses to memory.
    watcher: Watcher | None = field(default=None, kw_only=True)
    checks: Checks = field(default=NO_CHECKS, kw_only=True)

    def restart(self, held: Iterable[tuple[Buffer, Location]]) -> None:
        """Called before a program runs, once more or for the first time; buffers that are `held`
        have been written."""
        self.reporter.restart()
        self.races.synchronise()
        if self.written is not None:
            self.written.restart(held)
        if self.groups is not None:
            self.groups.restart()

    @property
    def want_kernels(self) -> bool:
        """Whether anything observes kernels."""
        return self.written is not None

    def want(self, step: Step) -> bool:
        """Whether anything observes the execution of instructions."""
        return self.observe is not None or (self.groups is not None and uses_psum(step))

    def begin(self, code: KernelCode) -> None:
        """Called before a kernel."""
        if self.written is not None:
            self.written.clear(code.fresh)

    def end(self, code: KernelCode) -> None:
        """Called after a kernel, while others run."""
        if self.written is not None:
            self.written.leave(code.fresh)

    def before(self, step: Step, values: Values) -> None:
        """Called before an instruction."""
        if self.groups is not None:
            self.groups.before(step, values)

    def after(self, step: Step, values: Values) -> None:
        """Called after an instruction."""
        self.races.settle()
        if self.observe is not None:
            self.observe(self.rank, step, values)

    def register(self, reader: Event, writer: Event, name: str) -> None:
        """Called when an event reads a register that another event has written."""
        if self.checks.races:
            self.races.register(reader, writer, name)


def hooks_of(program: Program, rank: int, checks: Checks, *, has_races: bool) -> Hooks:
    """The hooks of a rank; `has_races`: whether races can occur in the order of execution."""
    reporter = Reporter(rank, checks.report)
    races = Races(reporter)
    written = Written(reporter, checks.histories) if checks.uninitialised else None
    groups = Groups(reporter, program.target.core.version) if checks.accumulation else None
    watchers: list[Watcher] = [watcher for watcher in (written,) if watcher is not None]
    if checks.races and has_races:
        watchers.append(races)
    watcher = watcher_of(watchers)
    return Hooks(rank, reporter, races, written, groups, watcher=watcher, checks=checks)
