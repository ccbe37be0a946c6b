"""The emulated machine as a client: its devices, their memory, and the programs loaded on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from neuronjax.compiler import CompiledProgram, compile_program, device_assignment
from neuronjax.dump import Dump, ProgramDump
from neuronjax.errors import CompileError
from neuronjax.hlo.layouts import Order
from neuronjax.hlo.module import TensorSpec
from neuronjax.host.client import HostClient, HostExecutable, Placement
from neuronjax.host.shapes import ElsewhereExecutable, ShapesClient
from neuronjax.jaxlib_api import compile_options
from neuronjax.lazy import Lazy
from neuronjax.legalize.policy import Policy, policy_of
from neuronjax.legalize.report import Reporter
from neuronjax.legalize.rules.rule import Cores
from neuronjax.machine.machine import Machine
from neuronjax.options import Options
from neuronjax.processes.executable import SharedPrograms
from neuronjax.processes.roster import Process
from neuronjax.runtime import executable
from neuronjax.runtime.bit_flips import Flips
from neuronjax.runtime.device import Device
from neuronjax.runtime.event import Event, Waiters
from neuronjax.runtime.executable import (
    LoadedProgram,
    RunObserver,
)
from neuronjax.runtime.injection import Injector
from neuronjax.runtime.job import Job, take_part
from neuronjax.runtime.memory import HbmLedger, protect_host
from neuronjax.runtime.program_memory import ProgramMemory, program_memory
from neuronjax.runtime.stress import Stress
from neuronjax.runtime.value import MOST_SPECS, ShardedValue, ValueSpec

if TYPE_CHECKING:
    from neuronjax import engine_compiler
    from neuronjax.lower import passes
    from neuronjax.program import program as programs
    from neuronjax.program import text
    from neuronjax.runtime import engine, monitor, recording
else:
    engine_compiler = Lazy("neuronjax.engine_compiler")
    passes = Lazy("neuronjax.lower.passes")
    programs = Lazy("neuronjax.program.program")
    text = Lazy("neuronjax.program.text")
    engine = Lazy("neuronjax.runtime.engine")
    monitor = Lazy("neuronjax.runtime.monitor")
    recording = Lazy("neuronjax.runtime.recording")


def _engine_client(devices: int, machine: Machine, options: Options) -> HostClient:
    return engine.EngineClient(devices, _target(machine), options)


def _target(machine: Machine) -> programs.Target:
    return programs.Target(machine.chip.name, machine.lnc)


EXECUTORS: dict[str, Callable[[int, Machine, Options], HostClient]] = {
    "host": lambda devices, *_: HostClient(devices, runs=True),
    "none": lambda devices, *_: ShapesClient(devices),
    "engine": _engine_client,
}
"""Option ``executor`` -> what compiles and runs programs, for a number of devices of a machine."""


class Client:
    """The emulated machine, and the part of it that belongs to this process.

    ``process`` is this process among several; ``None`` if it is the only one.
    """

    def __init__(self, options: Options, process: Process | None = None) -> None:
        self.options = options
        self.machine = Machine.create(options.target, options.lnc)
        self.policy = policy_of(options, self.machine.chip)
        self.job: Job = take_part(self.machine, self.policy, options, process)
        self.devices: list[Device] = list(self.job.devices)
        self.core_ids = tuple(device.core.id for device in self.devices)
        """The logical core of the machine that each device is."""
        self.host = EXECUTORS[options.executor](len(self.devices), self.machine, options)
        self._reporter = Reporter()
        links = self.job.links
        self._shared = SharedPrograms(self.host, links) if links else None
        self._dump = Dump(Path(options.dump_to)) if options.dump_to else None
        self._programs: WeakValueDictionary[str, LoadedProgram] = WeakValueDictionary()
        self.stress = None if options.stress is None else Stress(options.stress)
        self.waiters = Waiters(self.stress)
        self.ledger = HbmLedger(
            labels=[device.label for device in self.devices],
            limits=[device.core.hbm_bytes for device in self.devices],
            reserved=self.machine.chip.microcode_bytes * self.machine.lnc,
        )
        self.injector = Injector(
            self.machine, self.devices, self.ledger, Flips(self.host), options.exec_timeout
        )
        self.injector.inject(options.faults)
        self.observers: list[RunObserver] = []
        """Observers that are notified of every run of every program."""
        self.recording: recording.ProcessRecording | None = None
        if options.profile_to:
            runs = self.new_recording()
            self.recording = recording.ProcessRecording(runs, Path(options.profile_to))
            self.observers.append(runs)
        self.monitor: monitor.Monitor | None = None
        if options.monitor_port:
            self.monitor = monitor.Monitor(
                self.machine, self.ledger, self.when_ready, self.injector.machine_of, self.core_ids
            )
            self.observers.append(self.monitor)
            self.monitor.serve(options.monitor_port)
        self._spec = lru_cache(MOST_SPECS)(_value_spec)

    def new_recording(self) -> recording.Recording:
        """A recording that begins now; it sees what it is added to `observers` for."""
        return recording.Recording(
            self.machine, self.ledger, self.injector.machine_of, self.core_ids
        )

    def close(self) -> None:
        """Ends background work."""
        if self.monitor is not None:
            self.monitor.close()
        self.job.close()

    def spec(
        self,
        tensor: TensorSpec,
        placement: Placement,
        memory_kind: str,
        layout: Order | None = None,
    ) -> ValueSpec:
        """The ``ValueSpec`` of this type, placement, memory kind and layout: the same object each
        time, unless thousands of others were asked for in between."""
        return self._spec(tensor, placement, memory_kind, layout)

    def put(
        self, value: np.ndarray, device: Device, memory_kind: str, layout: Order | None = None
    ) -> ShardedValue:
        """Copies a host array to one device; ``layout`` is what the value reports.

        Raises:
          DeviceMemoryError, HostMemoryError: it does not fit.
        """
        began = time.perf_counter_ns()
        placement = self.host.placement((device.id,))
        spec = self.spec(TensorSpec(value.shape, value.dtype), placement, memory_kind, layout)
        self._admit(spec)
        owned = self._owned(lambda: self.host.put(value, placement), spec)
        for observer in self.observers:
            observer.placed(f"{value.dtype}{list(value.shape)}", began)
        return owned

    def copy(
        self, value: ShardedValue, index: int, device: Device, memory_kind: str
    ) -> ShardedValue:
        """A copy of one shard on a device, which may be the same one.

        Raises:
          DeletedBufferError, DeviceMemoryError, HostMemoryError.
        """
        shard = value.shard(index)
        placement = self.host.placement((device.id,))
        spec = self.spec(value.spec.tensor, placement, memory_kind, value.spec.layout)
        self._admit(spec)
        copied = self._owned(lambda: self.host.copy(shard, spec.tensor, placement), spec)
        copied.inherit([value])
        return copied

    def _admit(self, spec: ValueSpec) -> None:
        self.ledger.check(spec.placement.ids, spec.hbm_bytes)
        protect_host(spec.shard_bytes, f"an array of shape {spec.tensor.shape}")
        if spec.hbm_bytes:
            self.ledger.allocate(spec.placement.ids, spec.hbm_bytes)

    def _owned(self, make: Callable[[], Any], spec: ValueSpec) -> ShardedValue:
        """A value whose memory has been charged; returns the memory if making the array fails."""
        try:
            return ShardedValue(make(), spec, self.ledger)
        except BaseException:
            self.ledger.free(spec.placement.ids, spec.hbm_bytes)
            raise

    def gather(
        self, shards: Sequence[tuple[ShardedValue, int]], placement: Placement
    ) -> ShardedValue:
        """A value of single shards that lie on the cores of ``placement``; it owns no memory."""
        first = shards[0][0].spec
        spec = ValueSpec(
            first.tensor, placement, first.memory_kind, first.shard_bytes, 0, first.layout
        )
        arrays = [value.shard(index) for value, index in shards]
        is_single = len(arrays) == 1
        array = arrays[0] if is_single else self.host.assemble(spec.tensor, placement, arrays)
        gathered = ShardedValue(array, spec, self.ledger)
        gathered.inherit(value for value, _ in shards)
        return gathered

    def is_ready(self, work: Any) -> bool:
        """Whether ``work`` (an array or a token) is done; under stress, sometimes False although it
        is."""
        return work.is_ready() and (self.stress is None or not self.stress.pretends_pending())

    def when_ready(self, work: Any) -> Event:
        """An event that is set when ``work`` (an array or a token) is done, with its error."""
        event = Event()
        self.waiters.submit(lambda: event.set(failure_of(work)))
        return event

    def compile(self, code: bytes, options: Any) -> LoadedProgram:
        """Compiles StableHLO and loads it on the devices its options assign.

        Raises:
          CompileError: see ``compile_program``; also devices that do not exist.
        """
        began = time.perf_counter_ns()
        assignment = device_assignment(options, default=self.job.local_devices[0].id)
        self._check_assignment(assignment)
        cores = cores_of(self.devices, assignment)
        program = compile_program(
            code,
            options,
            self.host,
            self.policy,
            cores,
            dump=self._dump,
            reporter=self._reporter,
        )
        host = self._on_cores(program, assignment)
        if program.files is not None:
            self._write_passes(program, program.files)
            program.files.write("lower", text.format(self._lower(program, host)))
        for observer in self.observers:
            observer.compiled(program.signature.name, began)
        return self._load(program, host, assignment)

    def _on_cores(self, program: CompiledProgram, assignment: np.ndarray) -> HostExecutable:
        """The program for the cores of an assignment that this process has."""
        ids = assignment.reshape(-1).tolist()
        local = self.job.local(ids)
        placement = self.host.placement(local)
        code = (program.per_core, placement, program.results, dict(program.xla_options))
        if not local:
            return ElsewhereExecutable(placement)
        if self._shared is None or len(local) == len(ids):
            return self.host.compile(*code, program.callbacks)
        executable.check_kernels_stay_together(program)
        owners = self.job.owners(ids)
        name = program.signature.name
        return self._shared.compile(name, ids, owners, *code, program.callbacks)

    def engine_program(self, fingerprint: str) -> programs.Program | None:
        """The engine program of a loaded executable; ``None`` if there is no such executable.

        Raises:
          UnsupportedProgramError, SbufOverflowError, PsumOverflowError: see ``lower_program``.
        """
        loaded = self._programs.get(fingerprint)
        return None if loaded is None else self._lower(loaded.program, loaded.host)

    def _lower(self, program: CompiledProgram, host: HostExecutable) -> programs.Program:
        if isinstance(host, engine.EngineExecutable):
            return host.program
        return engine_compiler.lower_program(
            program.per_core,
            _target(self.machine),
            program.num_devices,
            verify_passes=self.options.verify_passes,
        )

    def _write_passes(self, program: CompiledProgram, files: ProgramDump) -> None:
        wanted = self.options.dump_passes
        if wanted:

            def write(step: passes.Pass, state: Any) -> None:
                if step.name in wanted:
                    files.write(step.name, passes.shown(state))

            engine_compiler.lower_program(
                program.per_core, _target(self.machine), program.num_devices, watch=write
            )

    def load(self, data: bytes, options: Any | None) -> LoadedProgram:
        """Loads a serialized program; ``options`` override the device assignment it was made for.

        Raises:
          SerializationError: damaged bytes.
        """
        program, host_bytes, own_options = executable.deserialize(data)
        chosen = options or compile_options.parse(own_options)
        assignment = device_assignment(chosen, default=self.job.local_devices[0].id)
        self._check_assignment(assignment)
        ids = assignment.reshape(-1).tolist()
        if program.callbacks or self.job.local(ids) != ids:
            return self._load(program, self._on_cores(program, assignment), assignment)
        host = self.host.deserialize(host_bytes, self.host.placement(ids), program.results)
        return self._load(program, host, assignment)

    def _check_assignment(self, assignment: np.ndarray) -> None:
        if assignment.size and assignment.max() >= len(self.devices):
            raise CompileError(
                f"the program is assigned to device {assignment.max()}, but there are "
                f"{len(self.devices)} devices (0-{len(self.devices) - 1}) on {self.machine}"
            )

    def _load(self, program: CompiledProgram, host: Any, assignment: np.ndarray) -> LoadedProgram:
        results = [
            self.spec(result.type, host.placement, result.memory_kind or "device", result.layout)
            for result in program.signature.results
        ]
        loaded = LoadedProgram(
            program,
            host,
            assignment,
            results,
            self.ledger,
            self.machine.chip.core,
            self.observers,
            self.options.first_run,
        )
        self._programs[program.fingerprint] = loaded
        return self.injector.watch(loaded)


def _value_spec(
    tensor: TensorSpec, placement: Placement, memory_kind: str, layout: Order | None
) -> ValueSpec:
    nbytes = tensor.nbytes
    hbm = nbytes if memory_kind == "device" else 0
    return ValueSpec(tensor, placement, memory_kind, nbytes, hbm, layout)


def compile_ahead(
    code: bytes, options: Any, devices: Sequence[Device], policy: Policy, reporter: Reporter
) -> tuple[CompiledProgram, HostExecutable, ProgramMemory]:
    """Compiles for a machine of these ``devices``, which need not exist in this process.

    Raises:
      CompileError: see ``compile_program``; also devices that the machine lacks.
    """
    assignment = device_assignment(options, default=0)
    if assignment.size and assignment.max() >= len(devices):
        raise CompileError(
            f"the program is assigned to device {assignment.max()}, but the machine has only "
            f"{len(devices)} cores (0-{len(devices) - 1})"
        )
    host = HostClient(len(devices))
    cores = cores_of(devices, assignment)
    program = compile_program(code, options, host, policy, cores, reporter=reporter)
    host_executable = host.compile(
        program.per_core,
        host.placement(assignment.reshape(-1).tolist()),
        program.results,
        dict(program.xla_options),
        program.callbacks,
    )
    return program, host_executable, program_memory(program, host_executable)


def cores_of(devices: Sequence[Device], assignment: np.ndarray) -> Cores | None:
    """The logical cores of an assignment of ``devices``; ``None`` if it assigns nothing."""
    ids = assignment.reshape(-1).tolist()
    if not ids:
        return None
    return Cores(devices[0].machine, tuple(devices[index].core.id for index in ids))


def failure_of(work: Any) -> Exception | None:
    """Waits for an array or a token, and returns the error that it ended with."""
    try:
        work.block_until_ready()
    except Exception as error:
        return error
    return None
