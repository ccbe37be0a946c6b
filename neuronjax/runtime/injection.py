"""Faults that happen on purpose while programs run.

A program runs as ever until somebody asks for faults; then its ``execute`` goes through here. A run
that fails has results all the same, and whoever waits for them gets the error.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakSet

from neuronjax.errors import (
    CollectiveTimeoutError,
    DeviceMemoryError,
    ExecutionError,
    HardwareError,
)
from neuronjax.faults import (
    AtStep,
    BitFlip,
    CollectiveHangs,
    CoreDies,
    Fault,
    OutOfMemory,
    SlowCore,
    SlowLink,
    format_fault,
)
from neuronjax.machine.machine import Machine
from neuronjax.machine.slowness import check_core, slowed
from neuronjax.runtime.bit_flips import Flips
from neuronjax.runtime.device import Device
from neuronjax.runtime.event import Event
from neuronjax.runtime.executable import Execute, LoadedProgram
from neuronjax.runtime.memory import HbmLedger
from neuronjax.runtime.value import ShardedValue

_log = logging.getLogger("neuronjax.faults")

_DETECTED = {
    "hbm": "NRT_EXEC_HW_ERR_HBM_UE (status 1201): uncorrectable error in HBM",
    "sbuf": "NRT_EXEC_HW_ERR_NC_UE (status 1202): uncorrectable error in SBUF",
    "link": "NRT_EXEC_HW_ERR_DMA_ABORT (status 1203): transfer over a link aborted",
}
"""Memory of a flipped bit -> what the runtime says when the hardware notices."""


MachineOf = Callable[[Sequence[int]], Machine]
"""Cores of a program -> the machine as it finds it."""


@dataclass(eq=False)
class Active:
    """A fault that is asked for: runs are counted from then on."""

    fault: Fault
    runs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    died: ExecutionError | None = None
    """Why its core is out of use."""
    hung: list[tuple[Event, ExecutionError]] = field(default_factory=list)

    def strikes(self, program: LoadedProgram) -> bool:
        """Whether this run of a program is the one; counts it."""
        fault = self.fault
        if not isinstance(fault, AtStep) or fault.core not in program.placement.ids:
            return False
        if fault.needs_others and program.assignment.size == 1:
            return False
        name = program.program.signature.name
        return fnmatchcase(name, fault.program) and next(self.runs) == fault.step


@dataclass(eq=False)
class Injector:
    """The faults of a client, and the programs that they may strike."""

    machine: Machine
    devices: Sequence[Device]
    ledger: HbmLedger
    flips: Flips
    exec_timeout: int
    _programs: WeakSet[LoadedProgram] = field(default_factory=WeakSet)
    _active: list[Active] = field(default_factory=list)
    _has_failed: bool = False
    """Values with an error may be about: runs that take them fail, too."""

    def watch(self, program: LoadedProgram) -> LoadedProgram:
        """The program, which has just been loaded."""
        self._programs.add(program)
        if self._active or self._has_failed:
            program.intercept(self._run)
        return program

    def inject(self, faults: Sequence[Fault]) -> list[Active]:
        """Asks for faults, until `lift`.

        ConfigurationError: they name a core or links that there are not, or a memory that nobody
        emulates.
        """
        for fault in faults:
            self._check(fault)
        given = [Active(fault) for fault in faults]
        self._active += given
        if self._active:
            for program in list(self._programs):
                program.intercept(self._run)
        return given

    def lift(self, given: Sequence[Active]) -> None:
        """Undoes `inject`: dead cores work again, and what hangs fails now."""
        self._active = [each for each in self._active if each not in given]
        for each in given:
            for event, error in each.hung:
                event.set(error)
        if not self._active and not self._has_failed:
            for program in list(self._programs):
                program.intercept(None)

    def machine_of(self, cores: Sequence[int]) -> Machine:
        """The machine as programs on these cores find it: slower where a fault says so."""
        return slowed(self.machine, [each.fault for each in self._active], cores)

    def _check(self, fault: Fault) -> None:
        if isinstance(fault, SlowLink):
            slowed(self.machine, [fault], ())
            return
        assert isinstance(fault, AtStep | SlowCore)
        check_core(fault, self.machine, len(self.devices))
        if isinstance(fault, BitFlip):
            self.flips.check(fault)

    def _run(
        self,
        program: LoadedProgram,
        execute: Execute,
        values: list[ShardedValue],
        kept: frozenset[int],
        with_token: bool = False,
    ) -> tuple[list[ShardedValue], Any]:
        """One run of a program, with what strikes it."""
        struck = [each for each in list(self._active) if each.strikes(program)]
        source = next((value for value in values if value.error is not None), None)
        error = self._before(program, struck, values) or self._dead(program)
        results, token = execute(values, kept, with_token)
        for each in struck:
            if isinstance(each.fault, BitFlip) and not each.fault.detected:
                self.flips.after(each.fault, results)
            if isinstance(each.fault, CollectiveHangs) and source is None and error is None:
                return self._hang(program, each, results), token
        if source is not None:
            for value in results:
                value.error, value.event = source.error, source.event
            error = source.error if not results else None
        if error is not None:
            self._has_failed = True
            program.tell_failure(error, ran=True)
            if not results:
                raise error
            for value in results:
                value.fail(error)
        return results, token

    def _before(
        self, program: LoadedProgram, struck: Sequence[Active], values: list[ShardedValue]
    ) -> BaseException | None:
        error: BaseException | None = None
        for each in struck:
            fault = each.fault
            if isinstance(fault, OutOfMemory):
                raise DeviceMemoryError(self._refusal(program, fault))
            if isinstance(fault, CoreDies):
                each.died = error = HardwareError(self._obituary(program, fault))
            if isinstance(fault, BitFlip) and fault.detected:
                error = HardwareError(self._told(program, fault, _DETECTED[fault.memory]))
            elif isinstance(fault, BitFlip):
                self.flips.before(fault, program, values)
            _log.warning("%s strikes %s", format_fault(fault), program.program.signature.name)
        return error

    def _dead(self, program: LoadedProgram) -> BaseException | None:
        cores = program.placement.ids
        dead = (each for each in self._active if each.died and _core(each.fault) in cores)
        return next((each.died for each in dead), None)

    def _hang(
        self, program: LoadedProgram, active: Active, results: list[ShardedValue]
    ) -> list[ShardedValue]:
        """Results that nobody gets before the time is up, and then only the error."""
        fault = active.fault
        assert isinstance(fault, CollectiveHangs)
        error = CollectiveTimeoutError(
            self._told(
                program, fault,
                "NRT_TIMEOUT (status 5): suspected hang in collectives operation: the core never "
                f"came to it; waited {self.exec_timeout} s (NEURON_RT_EXEC_TIMEOUT)",
            )
        )  # fmt: skip
        self._has_failed = True
        event = Event()
        active.hung.append((event, error))
        timer = threading.Timer(self.exec_timeout, event.set, [error])
        timer.daemon = True
        timer.start()
        program.tell_failure(error, ran=True)
        for value in results:
            value.error, value.event = error, event
        if not results:
            event.wait()
            raise error
        return results

    def _refusal(self, program: LoadedProgram, fault: OutOfMemory) -> str:
        nbytes = sum(spec.hbm_bytes for spec in program.results)
        refusal = self.ledger.refusal(fault.core, nbytes)
        return f"NRT_RESOURCE (status 4): {refusal}\nInjected fault: {format_fault(fault)}."

    def _obituary(self, program: LoadedProgram, fault: CoreDies) -> str:
        return (
            self._told(program, fault, "NRT_EXEC_HW_ERR_NC_UE (status 1202): the core has stopped")
            + " It runs nothing any more, but its memory can be read. Start the process again, or "
            "make a new client (jax.extend.backend.clear_backends()), and resume from a checkpoint."
        )

    def _told(self, program: LoadedProgram, fault: AtStep, what: str) -> str:
        return (
            f"{what}: {self.devices[fault.core].label} in program "
            f"{program.program.signature.name!r}. Injected fault: {format_fault(fault)}."
        )


def _core(fault: Fault) -> int | None:
    return fault.core if isinstance(fault, AtStep) else None
