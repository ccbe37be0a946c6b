"""Whole programs in time: kernels, prefetch, collectives, control, and what is counted."""

from __future__ import annotations

import dataclasses

import pytest

from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.machine import Machine
from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.program.walk import count_instructions
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.encoding import Assumptions
from neuronjax.timing.network import collective_time
from neuronjax.timing.platform import Platform, smallest_machine
from neuronjax.timing.schedule import kernel_time, profile, schedule
from neuronjax.timing.timeline import Timeline
from tests.timing.programs import every, golden

PROGRAMS = every()
LAUNCH = CALIBRATION.prologue_ns[3] + CALIBRATION.epilogue_ns[3]


def kernel(name: str, source: str, result: str, *, slot: int = 0) -> str:
    """A kernel that doubles a [128, 2048] tensor."""
    return f"""
kernel "{name}" {{
  semaphore !loaded
  semaphore !doubled
  sbuf %t : float32[128, 2048]
  dma_copy dst=%t<0, 128>[0; 1:2048] src={source}[0; 2048:128, 1:2048] signals=(!loaded += 16)
  tensor_scalar dst=%t<0, 128>[0; 1:2048] data=%t<0, 128>[0; 1:2048] op0=multiply operand0=#2.0 waits=(!loaded >= 16) signals=(!doubled += 1)
  dma_copy queue=1 dst={result}[0; 2048:128, 1:2048] src=%t<0, 128>[0; 1:2048] waits=(!doubled >= 1)
}}
"""  # noqa: E501


def collective(name: str, source: str, result: str, stream: int = 0) -> str:
    return (
        f'kernel "{name}" {{ all_reduce dsts=({result}[0; 2048:128, 1:2048])'
        f" srcs=({source}[0; 2048:128, 1:2048]) groups=((0, 1, 2, 3)) stream={stream} }}"
    )


def program(*kernels: str, ranks: int = 4, head: str = "") -> Program:
    buffers = "\n".join(f"hbm %{name} : float32[128, 2048]" for name in "abcdefgh")
    return parse(
        f'program "p" target trainium2 lnc 1 ranks {ranks} {{\n{head}\n{buffers}\n'
        + "\n".join(kernels)
        + "\n}"
    )


def total(*kernels: str, head: str = "", assumptions: Assumptions | None = None) -> float:
    """Time without the launch, ns."""
    timeline = schedule(program(*kernels, head=head), assumptions=assumptions)
    assert timeline.launch_ns == LAUNCH
    return timeline.total_ns - timeline.launch_ns


ONE = total(kernel("one", "%a", "%b"))


def test_what_reads_the_result_comes_after_the_store() -> None:
    assert total(kernel("one", "%a", "%b"), kernel("two", "%b", "%c")) == pytest.approx(2 * ONE)


def test_others_load_while_the_results_are_stored() -> None:
    both = total(kernel("one", "%a", "%b"), kernel("two", "%c", "%d"))
    assert ONE + 1_000 < both < 2 * ONE - 2_000


def test_collectives_run_beside_kernels_that_do_not_need_them() -> None:
    machine = smallest_machine(program().target.chip_spec, 1, 4)
    assert machine is not None
    size = 128 * 2048 * 4
    reduced = collective_time("all_reduce", size, 4, machine, in_program=True).total_ns
    alone = total(collective("sum", "%a", "%b"))
    assert alone == pytest.approx(reduced, rel=0.01)
    beside = total(collective("sum", "%a", "%b"), kernel("one", "%c", "%d"))
    after = total(collective("sum", "%a", "%b"), kernel("one", "%b", "%d"))
    assert beside == pytest.approx(alone)
    assert after == pytest.approx(alone + ONE)


def test_a_collective_does_not_overwrite_what_is_read() -> None:
    assert total(kernel("one", "%a", "%b"), collective("sum", "%c", "%a")) > ONE


def test_streams_overlap_steps_but_share_links() -> None:
    one = total(collective("sum", "%a", "%b"))
    same = total(collective("x", "%a", "%b"), collective("y", "%c", "%d"))
    other = total(collective("x", "%a", "%b"), collective("y", "%c", "%d", stream=1))
    assert same == pytest.approx(2 * one, rel=0.01)
    assert one < other < same


def test_loops_over_kernels_reach_a_steady_state() -> None:
    body = kernel("one", "%a", "%b") + kernel("two", "%b", "%a")

    def trips(count: int) -> Timeline:
        return schedule(program(f"loop i in {count} {{ {body} }}"))

    few, many = trips(5), trips(5_000)
    each = few.total_ns - trips(4).total_ns
    assert many.total_ns == pytest.approx(few.total_ns + 4_995 * each)
    assert many.kernels[0].runs == 5_000
    assert many.instruction_count == 1_000 * few.instruction_count
    assert many.simulated_instructions == few.simulated_instructions


def test_equal_kernels_are_simulated_once() -> None:
    lines = [kernel(f"k{index}", "%a", "%b") for index in range(5)]
    assert schedule(program(*lines)).simulated_instructions == 3


def test_functions_and_whiles() -> None:
    text = """
program "decode" target trainium2 lnc 1 {
  register $going limit 1
  hbm %%a : float32[128, 2048]
  hbm %%b : float32[128, 2048]
  function @layer(hbm %%x : float32[128, 2048], hbm %%y : float32[128, 2048]) { %s }
  while {
    kernel "condition" { register_move dst=$going src=#1 }
  } do $going { call @layer(%%a, %%b) }
}
""" % kernel("layer", "%x", "%y")  # noqa: UP031
    assumed = schedule(parse(text))
    measured = schedule(parse(text), assumptions=Assumptions(trips={"going": 10}))
    assert assumed.assumed == ("going: 1 trips",)
    assert measured.assumed == ()
    assert measured.instructions["tensor_scalar"] == 10
    assert measured.total_ns - LAUNCH == pytest.approx(10 * (assumed.total_ns - LAUNCH), rel=0.05)


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_are_those_of_the_program(name: str) -> None:
    timeline = schedule(PROGRAMS[name])
    counted = count_instructions(PROGRAMS[name])
    if not any(word in name for word in ("control",)):
        assert {key: value for key, value in timeline.instructions.items() if value} == dict(
            counted
        )
    assert timeline == schedule(PROGRAMS[name])
    for each in timeline.kernels:
        assert each.critical in each.busy_ns
        assert max(each.busy_ns.values()) <= each.duration_ns * 1.001


def test_work_is_counted() -> None:
    timeline = schedule(PROGRAMS["matmul"])
    assert timeline.flops == 2 * 4096 * 8192 * 8192
    assert timeline.hardware_instructions["tensor"] == 65_536
    lhs, rhs, out = 4096 * 8192 * 4 * 8, 8192 * 8192 * 4 * 4, 4096 * 8192 * 4
    assert timeline.hbm_bytes == lhs + rhs + out
    assert timeline.kernels[0].critical == "tensor"
    assert timeline.share("tensor") > 0.99


def test_network_bytes_are_what_a_rank_sends() -> None:
    timeline = schedule(golden()["all_reduce"])
    assert timeline.network_bytes == 256 * 512 * 4 * 2 * 3 // 4


def test_profiles_have_lanes_of_engines_queues_and_streams() -> None:
    events = profile(golden()["all_reduce"], "all-reduce.1")
    assert {event.lane for event in events} == {"sync", "vector", "queue 0", "stream 0"}
    assert len(profile(PROGRAMS["matmul"], "matmul", most_events=100)) == 100
    with pytest.raises(KeyError):
        profile(golden()["all_reduce"], "no such kernel")


def test_chips_without_published_figures_are_refused() -> None:
    old = dataclasses.replace(PROGRAMS["empty"].target, chip="inferentia1")
    with pytest.raises(UnsupportedProgramError, match="AWS publishes neither"):
        schedule(dataclasses.replace(PROGRAMS["empty"], target=old))


def test_a_machine_may_be_given() -> None:
    machine = Machine.create("trn2.48xlarge", 2)
    with_links = Platform.of(golden()["all_reduce"], machine)
    assert with_links.machine == machine
    assert schedule(golden()["all_reduce"], platform=with_links).total_ns > LAUNCH


def test_a_kernel_alone() -> None:
    program = PROGRAMS["pipeline"]
    (timed,) = schedule(program).kernels
    alone = kernel_time(program.body[0], Platform.of(program))  # type: ignore[arg-type]
    assert alone.duration_ns == timed.duration_ns
    assert alone.busy_ns == timed.busy_ns


def test_more_ranks_than_a_machine_has_are_on_several() -> None:
    platform = Platform.of(dataclasses.replace(golden()["all_reduce"], ranks=1_024))
    assert platform.machine == Machine.create("trn2-ultraserver", 2)


def held_until(reader: str) -> Program:
    """A tile takes most of SBUF until one of two instructions; then weights are multiplied."""
    size, wide = 40_000, 16_384
    return parse(
        f"""
program "p" target trainium2 lnc 1 {{
hbm %weights : float32[128, {wide}] argument
hbm %result : float32[128, {wide}] result
kernel "first" {{
  sbuf %large : float32[128, {size}]
  sbuf %work : float32[128, 2048]
  memset dst=%large<0, 128>[0; 1:{size}] value=#0.0
  loop i in 200 {{
    tensor_scalar dst=%work<0, 128>[0; 1:2048] data=%work<0, 128>[0; 1:2048] op0=add operand0=#1.0
  }}
  {"tensor_copy dst=%work<0, 128>[0; 1:1] src=%large<0, 128>[0; 1:1]" if reader == "late" else ""}
}}
kernel "second" {{
  semaphore !loaded
  semaphore !done
  sbuf %t : float32[128, {wide}]
  dma_copy dst=%t<0, 128>[0; 1:{wide}] src=%weights[0; {wide}:128, 1:{wide}] signals=(!loaded += 16)
  tensor_scalar dst=%t<0, 128>[0; 1:{wide}] data=%t<0, 128>[0; 1:{wide}] op0=multiply operand0=#2.0 waits=(!loaded >= 16) signals=(!done += 1)
  dma_copy queue=1 dst=%result[0; {wide}:128, 1:{wide}] src=%t<0, 128>[0; 1:{wide}] waits=(!done >= 1)
}}
}}"""  # noqa: E501
    )


def test_weights_are_loaded_ahead_into_what_tiles_leave_free() -> None:
    early, late = schedule(held_until("early")), schedule(held_until("late"))
    loads = early.dma_bytes / 2 / Platform.of(held_until("late"), None).hbm_bytes_per_ns
    first, second = (each.kernels[1].duration_ns for each in (early, late))
    assert first < second - 0.3 * loads
