"""Every rule of the findings: a program that breaks it, and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from neuronjax.profiling.findings import RULES, findings
from neuronjax.profiling.records import (
    KernelProfile,
    MachineFacts,
    Part,
    Profile,
    ProgramProfile,
    Run,
)

MACHINE = MachineFacts(
    target="trn2.3xlarge", chip="trainium2", version=3, lnc=1, cores=8, max_flops=78.6e12,
    max_hbm_bandwidth=362e9, max_dma_bandwidth=368e9, dma_engines=16, base_clock_hz=1.2e9,
    hbm_bytes=12 << 30, sbuf_partition_bytes=192 << 10, psum_partition_bytes=16 << 10,
)  # fmt: skip


def kernel(**given: Any) -> KernelProfile:
    """A kernel of 1,000 ns that keeps what limits it busy."""
    critical = given.get("critical", "tensor")
    start, duration = given.get("start_ns", 0.0), given.get("duration_ns", 1_000.0)
    chosen: dict[str, Any] = {
        "path": "p/k", "name": "k", "operations": ("dot_general",), "sources": ("a.py:1",),
        "runs": 1, "start_ns": start, "end_ns": start + duration, "duration_ns": duration,
        "busy_ns": {critical: duration}, "dma_active_ns": 0.0, "critical": critical, "work": {},
        "hbm_scratch_bytes": 0, "sbuf_bytes": 0, "psum_bytes": 0, "tensor_waits_ns": {},
        "spans": (), "parts": (Part("", "", 1.0),),
    }  # fmt: skip
    return KernelProfile(**{**chosen, **given})


def program(*kernels: KernelProfile, **given: Any) -> ProgramProfile:
    chosen: dict[str, Any] = {
        "name": "p", "fingerprint": "", "ranks": 1, "kernels": kernels,
        "total_ns": max((each.end_ns for each in kernels), default=1_000.0),
        "busy_ns": {"tensor": 1_000.0},
    }  # fmt: skip
    return ProgramProfile(**{**chosen, **given})


BROKEN: dict[str, ProgramProfile] = {
    "small-dma": program(
        kernel(critical="dma", work={"dma_ideal_ns": 50, "dma_transfer_count": 9})
    ),
    "tensor-idle": program(
        kernel(busy_ns={"tensor": 100.0}, tensor_waits_ns={"dma": 7.0, "vector": 1.0})
    ),
    "transposes": program(
        kernel(), work={"adjusted_hardware_flops": 100, "adjusted_transpose_flops": 30}
    ),
    "spills": program(
        kernel(), work={"hbm_read_bytes": 100e3, "spill_reload_bytes": 50e3, "spill_save_bytes": 1}
    ),
    "exposed-collectives": program(kernel(), kernel(critical="collective", start_ns=1_000.0)),
    "gpsimd-bound": program(kernel(critical="gpsimd")),
    "elementwise-bound": program(kernel(critical="vector")),
    "idle": program(kernel(), total_ns=2_000.0),
    "launch": program(kernel(start_ns=500.0), launch_ns=500.0),
    "memory-bound": program(
        kernel(), model_flops=1e6, work={"hbm_read_bytes": 300e3, "hbm_write_bytes": 0}
    ),
}


def rules(found: ProgramProfile) -> set[str]:
    runs = (Run(0, (0,), 0.0, 0, 0),)
    profile = Profile(machine=MACHINE, programs=(found,), runs=runs, counts=(1,), host_ns=1)
    return {each.rule for each in findings(profile)}


def test_every_rule_has_a_case() -> None:
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize("rule", BROKEN)
def test_rule_finds(rule: str) -> None:
    assert rules(BROKEN[rule]) == {rule}


def test_nothing_to_find() -> None:
    hidden = kernel(critical="collective", path="p/c")
    assert rules(program(kernel(), hidden)) == set()
    assert rules(program(error="no")) == set()
