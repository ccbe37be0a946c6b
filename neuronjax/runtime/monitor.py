"""Counters of a running process, served on 127.0.0.1 as neuron-monitor's JSON and for Prometheus.

A thread times new programs one after the other. Until a program is timed, its runs have no
simulated time, and ``programs_not_timed_yet`` counts it. A program's ``note`` says what its time
leaves out, or why it has none.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import math
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs
from urllib.request import urlopen

from neuronjax.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    ExecutionError,
    HardwareError,
    MonitorError,
    NumericalError,
    OutOfBoundsError,
    quoted,
)
from neuronjax.machine.machine import Machine
from neuronjax.parsing import parse_float
from neuronjax.profiling.counters import (
    ERRORS,
    STATUS,
    CoreCounters,
    Facts,
    Snapshot,
    report,
)
from neuronjax.profiling.prometheus import exposition
from neuronjax.runtime.analysis import Analysis
from neuronjax.runtime.event import Event
from neuronjax.runtime.executable import LoadedProgram
from neuronjax.runtime.injection import MachineOf
from neuronjax.runtime.memory import HbmLedger
from neuronjax.runtime.monitor_server import (
    HOST,
    Answer,
    MonitorServer,
    join_from_elsewhere,
    refusal,
)

DEFAULT_PERIOD = 5.0
_PATIENCE_SECONDS = 1.0
"""How long a port may be taken by what the garbage collector has just ended."""
_SAMPLE_SECONDS, _SAMPLES = 1.0, 600
_log = logging.getLogger("neuronjax.monitor")

_POLL_SECONDS = 0.2
_LATENCIES = 1_000

_FAILURES: tuple[tuple[type[BaseException], str, str], ...] = (
    (CollectiveTimeoutError, "timed_out", "runtime"),
    (HardwareError, "completed_with_err", "hardware"),
    (NumericalError, "completed_with_num_err", "numerical"),
    (OutOfBoundsError, "incorrect_input", "model"),
    (ExecutionError, "completed_with_err", "model"),
    (BaseException, "completed_with_err", "generic"),
)
"""Class of an error -> neuron-monitor's counter for it; the first match wins."""


@dataclass(frozen=True, slots=True)
class _Times:
    """The simulated times of a run of a program, in ns, and its work."""

    total_ns: float
    busy_ns: float
    flops: float


@dataclass(slots=True)
class _Loaded:
    """A program that ran."""

    name: str
    cores: tuple[int, ...]
    code: int
    runs: int = 0
    times: _Times | None = None
    note: str = ""
    """What its time assumes, or why it has none."""


class Monitor:
    """Counts and reports runs of a client's programs."""

    def __init__(
        self,
        machine: Machine,
        ledger: HbmLedger,
        when_ready: Callable[[Any], Event],
        machine_of: MachineOf,
        core_ids: Sequence[int],
    ) -> None:
        self._machine, self._ledger, self._when_ready = machine, ledger, when_ready
        self._machine_of = machine_of
        self._core_ids = core_ids
        self._programs: dict[str, _Loaded] = {}
        self._status: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._latency: deque[float] = deque(maxlen=_LATENCIES)
        self._watched = False
        self._new: queue.SimpleQueue[tuple[_Loaded, Analysis]] = queue.SimpleQueue()
        self._samples: deque[Snapshot] = deque(maxlen=_SAMPLES)
        self._samples.append(self.snapshot())
        self._server: MonitorServer | None = None
        self._timer: threading.Thread | None = None
        self._stopped = False

    # Counting

    def compiled(self, name: str, began: int) -> None:
        """Compilations are not counted."""

    def placed(self, array: str, began: int) -> None:
        """Copies are not counted."""

    def ran(self, program: LoadedProgram, outputs: Sequence[Any], began: int) -> None:
        """Counts a run, and measures its real time unless another run is being measured."""
        known = self._programs.get(program.program.fingerprint) or self._see(program)
        known.runs += 1
        self._status["completed"] += 1
        if outputs and not self._watched:
            self._watched = True
            self._when_ready(outputs[0]).on_ready(lambda error: self._note_latency(began))

    def failed(self, program: LoadedProgram, error: BaseException, *, ran: bool) -> None:
        """Counts a failure, in place of the completed run if there was one."""
        self._status["completed"] -= ran
        status, kind = next(row[1:] for row in _FAILURES if isinstance(error, row[0]))
        self._status[status] += 1
        self._errors[kind] += 1

    def _note_latency(self, began: int) -> None:
        self._latency.append((time.perf_counter_ns() - began) * 1e-9)
        self._watched = False

    def _see(self, program: LoadedProgram) -> _Loaded:
        devices = program.placement.ids
        cores = tuple(self._core_ids[device] for device in devices)
        known = _Loaded(program.program.signature.name, cores, program.memory.code)
        self._programs[program.program.fingerprint] = known
        machine = self._machine_of(devices)
        self._new.put(
            (known, Analysis(program.program, program.program.num_devices, machine, program.host))
        )
        return known

    # Telling

    def snapshot(self) -> Snapshot:
        """The sums of all runs until now."""
        cores = dict.fromkeys(self._core_ids, CoreCounters())
        for program in list(self._programs.values()):
            if program.times is not None:
                for core in program.cores:
                    cores[core] = _plus(cores[core], program.times, program.runs)
        return Snapshot(
            seconds=time.monotonic(),
            status={name: self._status[name] for name in STATUS},
            errors={name: self._errors[name] for name in ERRORS},
            cores=cores,
        )

    def facts(self) -> Facts:
        """The present state of the process and its device."""
        machine, programs = self._machine, list(self._programs.values())
        used = {core: self._ledger.usage(device) for device, core in enumerate(self._core_ids)}
        times = [
            (program.times.total_ns * 1e-9, program.runs) for program in programs if program.times
        ]
        return Facts(
            pid=os.getpid(),
            tag=str(os.getpid()),
            target=machine.target,
            device_type=machine.chip.name,
            core_version=f"v{machine.chip.core.version}",
            lnc=machine.lnc,
            device_count=machine.core_count // machine.cores_per_chip,
            cores_per_device=machine.cores_per_chip,
            device_memory_bytes=machine.chip.hbm.capacity_bytes,
            memory=used,
            host_bytes=_resident(),
            loaded=[
                {"name": program.name, "model_id": number, "neuroncores": list(program.cores),
                 "executions": program.runs,
                 "device_latency": program.times.total_ns * 1e-9 if program.times else None,
                 "note": program.note}
                for number, program in enumerate(programs)
            ],
            total_latency=tuple(self._latency),
            device_latency=[
                seconds for seconds, runs in times for _ in range(min(runs, _LATENCIES))
            ],
            not_timed=sum(not program.times and not program.note for program in programs),
        )  # fmt: skip

    def report(self, period: float) -> dict[str, Any]:
        """The report on the last `period` seconds, or on all time if the process is younger."""
        now = self.snapshot()
        old = [sample for sample in list(self._samples) if now.seconds - sample.seconds >= period]
        before = old[-1] if old else self._samples[0]
        return report(before, now, self.facts())

    # Serving

    def answer(self, target: str) -> Answer:
        """``/`` and ``/json?period=5``: neuron-monitor's JSON; ``/metrics``: Prometheus."""
        path, _, query = target.partition("?")
        try:
            if path == "/metrics":
                return Answer(HTTPStatus.OK, *exposition(self.snapshot(), self.facts()))
            if path in ("/", "/json"):
                body = json.dumps(self.report(_period(query))) + "\n"
                return Answer(HTTPStatus.OK, "application/json", body.encode())
        except ConfigurationError as error:
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except MonitorError as error:
            return refusal(HTTPStatus.NOT_IMPLEMENTED, str(error))
        return refusal(HTTPStatus.NOT_FOUND, "not found; try /json?period=SECONDS or /metrics")

    def serve(self, port: int) -> None:
        """Answers requests on a local port, from threads that end with the process.

        If another client of this process has the port, that client keeps it; one that is being
        collected gives it up within a moment.
        ConfigurationError: another process has the port.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        while self._server is None:
            try:
                self._server = MonitorServer(port, self.answer)
            except OSError as error:
                if time.monotonic() < until:
                    gc.collect()
                    time.sleep(_POLL_SECONDS)
                elif _is_own(port):
                    _log.warning("port %d still serves the first client of this process", port)
                    return
                else:
                    raise ConfigurationError(
                        f"NEURONJAX_MONITOR_PORT={port} cannot be used: {error.strerror}. Each "
                        "process needs a free port of its own."
                    ) from None
        self._timer = threading.Thread(target=self._work, name="neuronjax-timing", daemon=True)
        self._timer.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Closes the port and waits for the threads, since none may run when Python ends."""
        atexit.unregister(self.close)
        self._stopped = True
        if self._server is not None:
            self._server.close()
        if self._timer is not None:
            join_from_elsewhere(self._timer)

    def _work(self) -> None:
        """Times new programs and takes samples, until it is closed."""
        while not self._stopped:
            now = time.monotonic()
            if now - self._samples[-1].seconds >= _SAMPLE_SECONDS:
                self._samples.append(self.snapshot())
            try:
                loaded, analysis = self._new.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            loaded.times, loaded.note = _times(analysis)


def _period(query: str) -> float:
    """The seconds in ``period=5``. ConfigurationError: the query is something else."""
    text = parse_qs(query).get("period", [str(DEFAULT_PERIOD)])[0]
    period = parse_float(text)
    if not 0 < period < math.inf:
        raise ConfigurationError(
            f"period={quoted(text)} must be a number of seconds greater than 0."
        )
    return period


def _is_own(port: int) -> bool:
    """Whether this process itself answers on the port."""
    try:
        with urlopen(f"http://{HOST}:{port}/json", timeout=5) as answer:
            pid = json.load(answer)["neuron_runtime_data"][0]["pid"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(pid == os.getpid())


def _times(analysis: Analysis) -> tuple[_Times | None, str]:
    """The times of a program, and what they assume; None and the reason if it cannot be timed."""
    measured = analysis.outcome
    if isinstance(measured, str):
        return None, measured
    numbers = measured.numbers
    busiest = max(value for name, value in numbers.items() if name.startswith("busy."))
    times = _Times(numbers["total_ns"], busiest, numbers["model_flops"])
    return times, "; ".join(measured.assumed)


def _plus(counters: CoreCounters, times: _Times, runs: int) -> CoreCounters:
    return CoreCounters(
        counters.simulated_ns + runs * times.total_ns,
        counters.busy_ns + runs * times.busy_ns,
        counters.flops + runs * times.flops,
    )


def _resident() -> int:
    """Memory of this process in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
