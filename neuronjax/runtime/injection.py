"""Injects faults while programs run.

Once faults are requested, calls of a program's ``execute`` go through this module. A run that fails
still has results, and waiting for them raises the error.
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
"""Memory of a flipped bit -> the runtime's message when the hardware detects it."""


MachineOf = Callable[[Sequence[int]], Machine]
"""Cores of a program -> the machine on which it runs."""


@dataclass(eq=False)
class Active:
    """A requested fault; runs are counted from the request on."""

    fault: Fault
    runs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    died: ExecutionError | None = None
    """Why its core is out of use."""
    hung: list[tuple[Event, ExecutionError]] = field(default_factory=list)

    def strikes(self, program: LoadedProgram) -> bool:
        """Counts a run of a program, and returns whether the fault strikes it."""
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
    """Values with an error may exist; runs that take them fail, too."""

    def watch(self, program: LoadedProgram) -> LoadedProgram:
        """Registers a program that has just been loaded."""
        self._programs.add(program)
        if self._active or self._has_failed:
            program.intercept(self._run)
        return program

    def inject(self, faults: Sequence[Fault]) -> list[Active]:
        """Activates faults until `lift`.

        ConfigurationError: they name cores or links that do not exist, or a memory that is not
        emulated.
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
        self._active = [active for active in self._active if active not in given]
        for active in given:
            for event, error in active.hung:
                event.set(error)
        if not self._active and not self._has_failed:
            for program in list(self._programs):
                program.intercept(None)

    def machine_of(self, cores: Sequence[int]) -> Machine:
        """The machine for programs on these cores, slowed down by active faults."""
        return slowed(self.machine, [active.fault for active in self._active], cores)

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
        """Runs a program once, with the faults that strike this run."""
        struck = [active for active in list(self._active) if active.strikes(program)]
        source = next((value for value in values if value.error is not None), None)
        error = self._before(program, struck, values) or self._dead(program)
        results, token = execute(values, kept, with_token)
        for active in struck:
            if isinstance(active.fault, BitFlip) and not active.fault.detected:
                self.flips.after(active.fault, results)
            if isinstance(active.fault, CollectiveHangs) and source is None and error is None:
                return self._hang(program, active, results), token
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
        for active in struck:
            fault = active.fault
            if isinstance(fault, OutOfMemory):
                raise DeviceMemoryError(self._refusal(program, fault))
            if isinstance(fault, CoreDies):
                active.died = error = HardwareError(self._obituary(program, fault))
            if isinstance(fault, BitFlip) and fault.detected:
                error = HardwareError(self._told(program, fault, _DETECTED[fault.memory]))
            elif isinstance(fault, BitFlip):
                self.flips.before(fault, program, values)
            _log.warning("%s strikes %s", format_fault(fault), program.program.signature.name)
        return error

    def _dead(self, program: LoadedProgram) -> BaseException | None:
        cores = program.placement.ids
        dead = (active for active in self._active if active.died and _core(active.fault) in cores)
        return next((active.died for active in dead), None)

    def _hang(
        self, program: LoadedProgram, active: Active, results: list[ShardedValue]
    ) -> list[ShardedValue]:
        """Results that stay pending until the timeout, and then have an error."""
        fault = active.fault
        assert isinstance(fault, CollectiveHangs)
        error = CollectiveTimeoutError(
            self._told(
                program, fault,
                "NRT_TIMEOUT (status 5): suspected hang in collectives operation: the core never "
                f"reached it; waited {self.exec_timeout} s (NEURON_RT_EXEC_TIMEOUT)",
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
            + " It no longer runs programs, but its memory can be read. Restart the process, or "
            "make a new client (jax.extend.backend.clear_backends()), and resume from a checkpoint."
        )

    def _told(self, program: LoadedProgram, fault: AtStep, what: str) -> str:
        return (
            f"{what}: {self.devices[fault.core].label} in program "
            f"{program.program.signature.name!r}. Injected fault: {format_fault(fault)}."
        )


def _core(fault: Fault) -> int | None:
    return fault.core if isinstance(fault, AtStep) else None
