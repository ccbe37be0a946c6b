"""Every rule of the findings: a program that breaks it, and ordinary ones that do not."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import neuronjax
from neuronjax.profiling.findings import RULES, findings
from neuronjax.profiling.records import (
    KernelProfile,
    MachineFacts,
    Part,
    Profile,
    ProgramProfile,
    Run,
)
from neuronjax.profiling.text import text
from neuronjax.recording import Recorded
from neuronjax.timing.timeline import Runs
from tests.profiling import finding_cases

MACHINE = MachineFacts(
    target="trn2.3xlarge", chip="trainium2", version=3, lnc=1, cores=8, max_flops=78.6e12,
    max_hbm_bandwidth=362e9, max_dma_bandwidth=368e9, dma_engines=16, base_clock_hz=1.2e9,
    hbm_bytes=12 << 30, sbuf_partition_bytes=192 << 10, psum_partition_bytes=16 << 10,
)  # fmt: skip


def kernel(**given: Any) -> KernelProfile:
    """A kernel of 1,000 ns that keeps what limits it busy."""
    critical = given.get("critical", "tensor")
    start, duration = given.get("start_ns", 0.0), given.get("added_ns", 1_000.0)
    chosen: dict[str, Any] = {
        "path": "p/k", "name": "k", "operations": ("dot_general",), "sources": ("a.py:1",),
        "runs": 1, "start_ns": start, "end_ns": start + duration, "span_ns": duration,
        "added_ns": duration, "in_time": (Runs(start, start + duration),),
        "busy_ns": {critical: duration}, "dma_active_ns": 0.0, "critical": critical, "work": {},
        "tensor_waits_ns": {}, "spans": (), "parts": (Part("", "", 1.0),),
    }  # fmt: skip
    return KernelProfile(**{**chosen, **given})


def program(*kernels: KernelProfile, **given: Any) -> ProgramProfile:
    chosen: dict[str, Any] = {
        "name": "p", "fingerprint": "", "ranks": 1, "kernels": kernels,
        "total_ns": max((each.end_ns for each in kernels), default=1_000.0),
        "busy_ns": {"tensor": 1_000.0},
    }  # fmt: skip
    return ProgramProfile(**{**chosen, **given})


def recorded(case: finding_cases.Case) -> Recorded:
    function, arguments = case
    jitted, placed = jax.jit(function), jax.device_put(list(arguments))
    with neuronjax.profile() as recorded:
        jitted(*placed)
    return recorded


def rules(case: finding_cases.Case) -> set[str]:
    recording = recorded(case)
    for each in recording.findings:
        assert recording.profile is not None
        assert 0 < each.cost_ns <= recording.profile.total_ns
        assert "finding_cases.py:" in f"{each.what} {each.source}" or each.rule == "launch"
    return {each.rule for each in recording.findings}


def test_every_rule_has_a_program() -> None:
    assert finding_cases.BREAKING.keys() == RULES.keys()


@pytest.mark.parametrize("rule", finding_cases.BREAKING)
def test_a_rule_finds_the_program_that_breaks_it(rule: str) -> None:
    assert rule in rules(finding_cases.BREAKING[rule])


@pytest.mark.parametrize("name", finding_cases.ORDINARY)
def test_ordinary_programs_break_few_rules(name: str) -> None:
    case, expected = finding_cases.ORDINARY[name]
    assert rules(case) == expected


def test_keys_of_rbg_are_split_with_threefry() -> None:
    """Who draws with rbg already is not told to."""
    case = (finding_cases.split_in_a_loop, [jax.random.key(0, impl="rbg")])
    (finding,) = (each for each in recorded(case).findings if each.rule == "threefry")
    assert "split the key once" in finding.remedy
    draws = recorded(finding_cases.BREAKING["threefry"]).findings
    assert ["Draw with rbg" in each.remedy for each in draws if each.rule == "threefry"] == [True]


def test_nothing_to_find() -> None:
    assert findings(profile(program(kernel()))) == []
    assert findings(profile(program(error="no"))) == []


def profile(*programs: ProgramProfile) -> Profile:
    runs = tuple(Run(number, (0,), 0.0, 0, 0) for number in range(len(programs)))
    return Profile(
        machine=MACHINE, programs=programs, runs=runs, counts=(1,) * len(programs), host_ns=1
    )


def test_equal_findings_of_programs_are_one() -> None:
    short = [program(kernel(start_ns=500.0), name=name, launch_ns=500.0) for name in "abc"]
    (found,) = findings(profile(*short))
    assert (found.rule, found.programs) == ("launch", "a and 2 more programs")
    assert found.cost_ns == 1_500.0
    assert " 33.3 %  a and 2 more programs: starting" in text(profile(*short))
