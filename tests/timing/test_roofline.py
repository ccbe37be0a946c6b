"""No schedule is below what the hardware's peaks allow."""

from __future__ import annotations

import pytest

from neuronjax.timing.platform import Platform
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from tests.timing.programs import every

PROGRAMS = every()


@pytest.mark.parametrize("busy", [1, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_are_above_the_roofline(name: str, busy: int | None) -> None:
    program = PROGRAMS[name]
    platform = Platform.of(program, busy_cores=busy)
    timeline = schedule(program, platform=platform)
    bounds = roofline(program, platform).bounds_ns
    for resource, bound in bounds.items():
        assert bound <= timeline.total_ns - timeline.launch_ns, resource


def test_a_large_product_is_at_its_roofline() -> None:
    program = PROGRAMS["matmul"]
    bound = roofline(program)
    assert bound.limit == "tensor"
    assert bound.bound_ns == pytest.approx(4 * 2 * 4096 * 8192 * 8192 / 78.64e12 * 1e9, rel=1e-3)
    assert schedule(program).total_ns < 1.01 * bound.bound_ns


def test_streams_of_data_are_limited_by_memory() -> None:
    program = PROGRAMS["pipeline"]
    moved = 40 * 2 * 128 * 2000 * 4
    assert roofline(program).bounds_ns["hbm"] == pytest.approx(moved / (2900 / 8))
    assert roofline(program).limit == "hbm"
