"""One clock, two witnesses: the simulation in program order against events in the order of time.

They agree to the picosecond. Where transfers compete for the DMA engines, the simulation lets
queues take turns and fills gaps, while the events serve who is ready first: these programs are
named, and compared without the competition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.program.program import Call, Kernel, Loop, Program
from neuronjax.program.text import format as format_program
from neuronjax.program.text import parse
from neuronjax.program.walk import kernels
from neuronjax.timing import schedule as scheduling
from neuronjax.timing.encoding import PS, Assumptions, Compiled, compile_kernel
from neuronjax.timing.platform import Platform
from neuronjax.timing.simulate import simulate
from tests.emulate.test_overlaps import PART
from tests.timing.discrete_event import DiscreteEvents, instruction_runs, without_competition
from tests.timing.programs import every, pipeline

GOLDEN = Path(__file__).parents[1] / "lower" / "golden"
MOST_RUNS = 3_000
"""Instructions in all trips of a kernel; each is an event."""

COMPETING = frozenset(
    {
        "lower add_transposed",
        "lower attention",
        "lower convolution",
        "lower decode_product",
        "lower matmul",
        "lower matmul_epilogue",
        "lower scan",
    }
)
"""Programs whose transfers compete."""


SHARED_QUEUE = frozenset({"golden scatter_add"})
"""Programs whose queue two engines feed, which says nothing about whose transfer comes first."""


def _cases() -> Iterator[tuple[str, Program, Kernel]]:
    lowered = {f"lower {path.stem}": parse(path.read_text()) for path in GOLDEN.glob("*.txt")}
    for name, program in sorted((every() | lowered).items()):
        if name in SHARED_QUEUE:
            continue
        for place, kernel in kernels(program):
            compiled = compile_kernel(kernel, Platform.of(program), Assumptions())
            if not compiled.is_partial and instruction_runs(compiled.streams) <= MOST_RUNS:
                yield f"{name}: {place.path}/{kernel.name}", program, kernel


CASES = {case: (program, kernel) for case, program, kernel in _cases()}


@pytest.mark.parametrize("case", CASES)
def test_both_witnesses_give_the_same_picosecond(case: str) -> None:
    program, kernel = CASES[case]
    platform = Platform.of(program)
    compiled = compile_kernel(kernel, platform, Assumptions())
    if case.partition(":")[0] in COMPETING:
        compiled = replace(compiled, streams=without_competition(compiled.streams))
    happened = DiscreteEvents([(compiled, 0)], platform).duration()
    assert happened == simulate(compiled, platform).duration


@settings(max_examples=30, deadline=None)
@given(
    trips=st.integers(1, 60),
    work=st.integers(1, 2048),
    slots=st.integers(1, 4),
)
def test_both_agree_on_pipelines(trips: int, work: int, slots: int) -> None:
    program = pipeline(trips, work=work, slots=slots)
    platform = Platform.of(program)
    for _, kernel in kernels(program):
        compiled = compile_kernel(kernel, platform, Assumptions())
        compiled = replace(compiled, streams=without_competition(compiled.streams))
        happened = DiscreteEvents([(compiled, 0)], platform).duration()
        assert happened == simulate(compiled, platform).duration


def _sequence(program: Program) -> list[Kernel] | None:
    """The kernels of a program as they come; None: something decides about them, or splits them."""
    functions = {function.name: function for function in program.functions}
    kernels_of: list[Kernel] = []
    for node in program.body:
        body = functions[node.function].body if isinstance(node, Call) else (node,)
        if isinstance(node, Loop) and isinstance(node.trips, int):
            body = node.body * node.trips
        if not all(isinstance(inner, Kernel) for inner in body):
            return None
        kernels_of += [inner for inner in body if isinstance(inner, Kernel)]
    return kernels_of


def _runs_of(kernel: Kernel, program: Program) -> int:
    return instruction_runs(compile_kernel(kernel, Platform.of(program), Assumptions()).streams)


def _whole() -> dict[str, Program]:
    programs = {case.partition(":")[0]: program for case, (program, _) in CASES.items()}
    sequences = {name: _sequence(program) for name, program in programs.items()}
    return {
        name: programs[name]
        for name, sequence in sorted(sequences.items())
        if sequence
        and len(sequence) > 1
        and sum(_runs_of(kernel, programs[name]) for kernel in sequence) <= MOST_RUNS
    }


PARTS = {
    f"after all but {left}": parse(format_program(PART).replace("but 1", f"but {left}"))
    for left in range(3)
}
WHOLE = _whole() | PARTS


@pytest.mark.parametrize("name", WHOLE)
def test_both_agree_about_whole_programs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that overlap: engines go on to the next one while others are at work."""
    program = WHOLE[name]
    platform = Platform.of(program)
    sequence = _sequence(program)
    assert sequence is not None

    def compiled(kernel: Kernel, *given: Any) -> Compiled:
        made = compile_kernel(kernel, *given)
        return replace(made, streams=without_competition(made.streams))

    monkeypatch.setattr(scheduling, "compile_kernel", compiled)
    codes = [(compiled(kernel, platform, Assumptions()), kernel.overlaps) for kernel in sequence]
    timeline = scheduling.schedule(program, platform=platform)
    happened = DiscreteEvents(codes, platform).duration()
    simulated = round((timeline.total_ns - timeline.launch_ns) * PS)
    assert abs(happened - simulated) <= 1  # transfers still take turns of a picosecond


def test_a_kernel_that_waits_for_less_ends_earlier() -> None:
    times = [scheduling.schedule(program).total_ns for program in PARTS.values()]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[2]


def test_there_are_many() -> None:
    assert len(CASES) >= 35
    assert {case.partition(":")[0] for case in CASES} > COMPETING
