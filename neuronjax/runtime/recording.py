"""Records the runs of loaded programs, and makes a profile of them at the end.

Recording a run costs as much as appending to a list. Programs are lowered and timed once, at the
end, whichever executor computed their values.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuronjax.compiler import CompiledProgram
from neuronjax.engine_compiler import lower_program
from neuronjax.errors import NeuronError
from neuronjax.machine.machine import Machine
from neuronjax.planning.flops import model_flops
from neuronjax.profiling import store
from neuronjax.profiling.analyse import analyse, facts, failed
from neuronjax.profiling.arrays import interface
from neuronjax.profiling.records import (
    COMPILATION,
    INPUT,
    Phase,
    Profile,
    ProgramProfile,
    Run,
)
from neuronjax.program.program import Program, Target
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.injection import MachineOf
from neuronjax.runtime.memory import HbmLedger

MOST_RUNS = 1_000_000
"""Most runs that are kept individually; further ones are only counted."""

_log = logging.getLogger("neuronjax.profile")


@dataclass(slots=True)
class Seen:
    """A program that ran, without its executable, which may be freed."""

    compiled: CompiledProgram
    lowered: Program | None
    #: The first of this process's devices that run it.
    device: int
    #: The logical cores of the machine that this process's ranks are on.
    cores: tuple[int, ...]
    #: The core of each rank, also those of other processes.
    rank_cores: tuple[int, ...]
    number: int
    machine: Machine
    count: int = 0


@dataclass
class Recording:
    """The runs of a client's programs, from its creation until `profile`."""

    machine: Machine
    ledger: HbmLedger
    machine_of: MachineOf
    #: The logical core of the machine that each device is.
    core_ids: Sequence[int]
    _seen: dict[int, Seen] = field(default_factory=dict)
    #: Number of the program, beginning and end of its dispatch, bytes of tensors.
    _runs: list[tuple[int, int, int, int]] = field(default_factory=list)
    #: What the host did, for what, from when to when.
    _phases: list[tuple[str, str, int, int]] = field(default_factory=list)
    _began: int = field(default_factory=time.perf_counter_ns)

    def compiled(self, name: str, began: int) -> None:
        """Records a compilation."""
        self._note(COMPILATION, name, began)

    def placed(self, array: str, began: int) -> None:
        """Records the copy of an input."""
        self._note(INPUT, array, began)

    def _note(self, phase: str, name: str, began: int) -> None:
        if len(self._phases) < MOST_RUNS:
            self._phases.append((phase, name, began, time.perf_counter_ns()))

    def ran(self, program: LoadedProgram, outputs: Sequence[Any], began: int) -> None:
        """Records that a run was enqueued."""
        seen = self._seen.get(id(program.program)) or self._see(program)
        seen.count += 1
        if len(self._runs) < MOST_RUNS:
            now = time.perf_counter_ns()
            tensors = self.ledger.tensor_bytes(seen.device)
            self._runs.append((seen.number, began, now, tensors))

    def failed(self, program: LoadedProgram, error: BaseException, *, ran: bool) -> None:
        """Keeps failed runs in the recording, since they took time, too."""

    def _see(self, program: LoadedProgram) -> Seen:
        devices = program.placement.ids
        seen = Seen(
            compiled=program.program,
            lowered=getattr(program.host, "program", None),
            device=devices[0],
            cores=tuple(self.core_ids[device] for device in devices),
            rank_cores=tuple(self.core_ids[device] for device in program.assignment.reshape(-1)),
            number=len(self._seen),
            machine=self.machine_of(devices),
        )
        self._seen[id(program.program)] = seen
        return seen

    def profile(self) -> Profile:
        """All runs until now, and their timed programs."""
        length = time.perf_counter_ns() - self._began
        seen = list(self._seen.values())
        programs = [profile_of(program, program.machine) for program in seen]
        return Profile(
            machine=facts(self.machine),
            programs=tuple(programs),
            runs=tuple(self._place(seen, programs)),
            counts=tuple(program.count for program in seen),
            host_ns=length,
            phases=tuple(
                Phase(phase, name, began - self._began, ended - self._began)
                for phase, name, began, ended in self._phases
            ),
        )

    def _place(self, seen: Sequence[Seen], programs: Sequence[ProgramProfile]) -> Iterator[Run]:
        """Runs begin when they have been enqueued, and all of their cores are free."""
        free: dict[int, float] = {}
        for number, began, now, tensors in self._runs:
            cores, host_ns = seen[number].cores, now - self._began
            start = max(float(host_ns), *(free.get(core, 0.0) for core in cores))
            yield Run(number, cores, start, host_ns, tensors, now - began)
            for core in cores:
                free[core] = start + programs[number].total_ns


class ProcessRecording:
    """A recording that writes its files on request, or else when the process ends."""

    def __init__(self, recording: Recording, folder: Path) -> None:
        store.prepare(folder)
        self.recording = recording
        self._folder = folder
        self._profile: Profile | None = None
        self._process = os.getpid()
        atexit.register(self._end_of_process)

    def _end_of_process(self) -> None:
        """Writes the files, except in forked children, to which the folder does not belong."""
        if os.getpid() == self._process:
            self.end()

    def end(self) -> Profile:
        """The profile, written to the folder; a second call gives the same one."""
        if self._profile is None:
            atexit.unregister(self._end_of_process)
            self._profile = self.recording.profile()
            store.write(self._profile, self._folder)
        return self._profile


def profile_of(seen: Seen, machine: Machine) -> ProgramProfile:
    """The profile of a program that ran; if it cannot be lowered or timed, it says why."""
    compiled = seen.compiled
    name, ranks = compiled.signature.name, len(seen.rank_cores)
    _log.info("timing %s", name)
    try:
        target = Target(machine.chip.name, machine.lnc, machine.chip)
        lowered = seen.lowered or lower_program(
            compiled.per_core, target, ranks, check_memory=False
        )
        flops = float(model_flops(compiled.per_core))
        return analyse(
            lowered,
            machine,
            fingerprint=compiled.fingerprint,
            model_flops=flops,
            interface=interface(
                compiled.per_core, compiled.signature, ranks, compiled.num_partitions
            ),
            cores=seen.rank_cores,
        )
    except NeuronError as error:
        reason = str(error)
    except Exception as error:  # a defect of ours must not cost what was recorded
        _log.exception("program %s cannot be shown", name)
        reason = f"{name} cannot be shown, which is a defect of neuronjax: {error!r}"
    return failed(name, compiled.fingerprint, seen.rank_cores, reason)
