"""Programs that only prepare stand behind those that repeat."""

from __future__ import annotations

import pytest

from neuronjax.profiling.findings import findings
from neuronjax.profiling.phases import one_off, ranked
from neuronjax.profiling.records import Profile, Run
from neuronjax.profiling.text import text
from tests.profiling import recorded
from tests.profiling.test_findings import MACHINE, program

DRAW = program(name="draw", total_ns=9_000.0)
STEP = program(name="step", total_ns=1_000.0, model_flops=3.0)
EVALUATE = program(name="evaluate", total_ns=500.0, model_flops=1.0)


def profile(runs: str) -> Profile:
    """A recording of runs by their first letters."""
    programs = (DRAW, STEP, EVALUATE)
    numbers = ["dse".index(letter) for letter in runs]
    return Profile(
        machine=MACHINE,
        programs=programs,
        runs=tuple(Run(number, (0,), 0.0, 0, 0) for number in numbers),
        counts=tuple(map(numbers.count, range(len(programs)))),
        host_ns=1,
    )


@pytest.mark.parametrize(
    ("runs", "aside", "first"),
    [
        ("ddddsss", ("draw", "evaluate"), "step"),
        ("ddddssseee", ("draw",), "step"),
        ("ssesse", (), "step"),
        ("dsdsds", (), "draw"),
        ("dds", (), "draw"),
        ("ssssd", ("draw", "evaluate"), "step"),
        ("ddd", (), "draw"),
    ],
    ids=["drawn", "evaluated", "between", "every step", "no steps", "at the end", "alone"],
)
def test_what_repeats_comes_first(runs: str, aside: tuple[str, ...], first: str) -> None:
    given = profile(runs)
    ran = {given.programs[run.program].name for run in given.runs}
    names = {given.programs[number].name for number in one_off(given)}
    assert names & ran == set(aside) & ran
    assert given.programs[ranked(given)[0]].name == first


def test_a_recording_begins_with_its_step() -> None:
    recording = recorded.profile()
    lines = iter(text(recording).splitlines())
    assert any(set(line) == {"-", " "} for line in lines), "no table of programs"
    assert next(lines).startswith("jit_step ")
    assert next(lines).startswith("preparation, run once: 1 program, ")
    order = [finding.is_one_off for finding in findings(recording)]
    assert order == sorted(order)
