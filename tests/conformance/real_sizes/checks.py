"""What holds for every program: it is lowered, in time, above its roofline, in the right order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from neuronjax.machine.instances import find_instance
from tests.conformance.random_programs.compare import manner
from tests.conformance.random_programs.workers import Worker
from tests.conformance.real_sizes.kind import Unsuitable
from tests.conformance.real_sizes.program import KINDS, NEWER, SizedProgram, check_size, plainer

MOST_SECONDS = 20
"""For an estimate as users make it, by the clock of the process."""
_NOISE = 1.01
"""Orders of instructions are chosen by price kernel by kernel, and the last percent is chance."""
_MOST_ATTEMPTS = 60


@dataclass(frozen=True)
class Estimated:
    """The time of a program between its launch and its end, and the CPU time of its estimate."""

    time_ns: float
    roofline_ns: float
    cpu_seconds: float
    busiest: str

    @property
    def ratio(self) -> float:
        """How many times its roofline a program takes."""
        return self.time_ns / self.roofline_ns


Outcome = Estimated | str
"""Or what the estimate raised, or what happened to its process."""


@dataclass(frozen=True)
class Finding:
    """A program that something is wrong with, as small as it could be made."""

    program: SizedProgram
    error: str

    @property
    def manner(self) -> str:
        return manner(self.error)


class Net:
    """A process that estimates programs with every pass verified, and another that does as users
    do, for those that take long."""

    def __init__(self, timeout: float = 300) -> None:
        module = "tests.conformance.real_sizes.worker"
        self._worker = Worker("verified", timeout, module)
        self._user = Worker("host", timeout, module)
        self._known: dict[str, Outcome] = {}

    def __enter__(self) -> Net:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._worker.close()
        self._user.close()

    def estimate(self, program: SizedProgram) -> Outcome:
        """The estimate of a program, made once."""
        if program.script not in self._known:
            self._known[program.script] = self._worker.ask(program)
        return self._known[program.script]

    def estimate_as_user(self, program: SizedProgram) -> Outcome:
        """The estimate of a program without verification."""
        outcome: Outcome = self._user.ask(program)
        return outcome

    def measure_seconds(self, program: SizedProgram) -> float:
        """The CPU time of an estimate in s, without verification if that makes it long."""
        outcome = self.estimate(program)
        if isinstance(outcome, Estimated) and outcome.cpu_seconds > MOST_SECONDS:
            outcome = self.estimate_as_user(program)
        return outcome.cpu_seconds if isinstance(outcome, Estimated) else 0.0

    def check(self, program: SizedProgram, laws: Sequence[Law]) -> tuple[Finding | None, Outcome]:
        """What is wrong with a program, with the plainest that shows it, and its own estimate."""
        self._known.clear()
        outcome = self.estimate(program)
        for law in laws:
            error = law(self, program)
            if error:
                return self._shrunk(program, error, law), outcome
        return None, outcome

    def _shrunk(self, program: SizedProgram, error: str, law: Law) -> Finding:
        """Plainer programs are tried as long as one shows an error of the same manner."""
        finding, attempts = Finding(program, error), 0
        while attempts < _MOST_ATTEMPTS:
            for candidate in plainer(finding.program):
                attempts += 1
                error = law(self, candidate)
                if manner(error) == finding.manner:
                    finding = Finding(candidate, error)
                    break
                if attempts >= _MOST_ATTEMPTS:
                    break
            else:
                break
        return finding


Law = Callable[[Net, SizedProgram], str]


def is_estimated(net: Net, program: SizedProgram) -> str:
    outcome = net.estimate(program)
    return outcome if isinstance(outcome, str) else ""


def is_in_time(net: Net, program: SizedProgram) -> str:
    seconds = net.measure_seconds(program)
    return f"slow: the estimate takes {seconds:.0f} s" if seconds > MOST_SECONDS else ""


def is_above_its_roofline(net: Net, program: SizedProgram) -> str:
    outcome = net.estimate(program)
    if isinstance(outcome, str) or outcome.ratio >= 1:
        return ""
    return (
        f"below the roofline: {outcome.time_ns / 1e3:.1f} µs, {outcome.ratio:.2f} of "
        f"{outcome.roofline_ns / 1e3:.1f} µs"
    )


def is_faster_than_with_a_row_more(net: Net, program: SizedProgram) -> str:
    rows = KINDS[program.kind].rows
    if not rows or program.mesh:
        return ""
    more: Mapping[str, int | str | bool] = {**program.choices, rows: int(program.choices[rows]) + 1}
    longer = replace(program, choices=more)
    try:
        check_size(longer)
    except Unsuitable:
        return ""
    return _in_order(net, program, longer, f"a row more is faster ({rows})")


def is_slower_than_on_a_newer_machine(net: Net, program: SizedProgram) -> str:
    """Engines of Trainium2 have slower clocks, and not everything is divided between two cores."""
    newer = NEWER.get(program.machine)
    if newer is None or program.mesh:
        return ""
    slower_clock = max(_clocks(program.machine)) / max(_clocks(newer))
    what = f"slower on {newer}"
    return _in_order(net, replace(program, machine=newer), program, what, slower_clock)


def _clocks(machine: str) -> list[int]:
    core = find_instance(machine).chip.core
    return [core.tensor.clock_hz, *(engine.clock_hz for engine in core.engines.values())]


def _in_order(
    net: Net, faster: SizedProgram, slower: SizedProgram, what: str, allowed: float = 1.0
) -> str:
    a, b = net.estimate(faster), net.estimate(slower)
    if isinstance(a, str) or isinstance(b, str) or a.time_ns <= b.time_ns * allowed * _NOISE:
        return ""
    return f"{what}: {a.time_ns / 1e3:.1f} µs against {b.time_ns / 1e3:.1f} µs"


LAWS: tuple[Law, ...] = (is_estimated, is_in_time, is_above_its_roofline)
ORDERS: tuple[Law, ...] = (is_faster_than_with_a_row_more, is_slower_than_on_a_newer_machine)
_ORDERED = 4


def laws_of(seed: int) -> tuple[Law, ...]:
    """The laws that are looked at for a seed: of every fourth an order too, which takes longer."""
    return LAWS if seed % _ORDERED else (*LAWS, ORDERS[seed // _ORDERED % len(ORDERS)])
