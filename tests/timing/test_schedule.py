"""Whole programs in time: kernels that overlap, collectives, control, and what is counted."""

from __future__ import annotations

import dataclasses

import pytest

from neuronjax.errors import UnsupportedProgramError
from neuronjax.machine.machine import Machine
from neuronjax.program.program import Program
from neuronjax.program.text import parse
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.encoding import Assumptions
from neuronjax.timing.network import collective_time
from neuronjax.timing.platform import Platform, smallest_machine
from neuronjax.timing.schedule import profile, schedule
from neuronjax.timing.simulations import Simulations
from neuronjax.timing.timeline import Timeline, sampled
from tests.program.counts import count_instructions
from tests.timing.programs import every, golden

PROGRAMS = every()
LAUNCH = CALIBRATION.prologue_ns[3] + CALIBRATION.epilogue_ns[3]


def kernel(name: str, source: str, result: str, *, overlaps: int = 0, after: str = "") -> str:
    """A kernel that doubles a [128, 2048] tensor; it loads `after` kernels that it overlaps."""
    head = f" overlaps {overlaps}" if overlaps else ""
    waits = f"after=({after})" if after else ""
    return f"""
kernel "{name}"{head} {{
  semaphore !loaded
  semaphore !doubled
  sbuf %t : float32[128, 2048]
  dma_copy dst=%t<0, 128>[0; 1:2048] src={source}[0; 2048:128, 1:2048] signals=(!loaded += 16) {waits}
  tensor_scalar dst=%t<0, 128>[0; 1:2048] data=%t<0, 128>[0; 1:2048] op0=multiply operand0=#2.0 waits=(!loaded >= 16) signals=(!doubled += 1)
  dma_copy queue=1 dst={result}[0; 2048:128, 1:2048] src=%t<0, 128>[0; 1:2048] engine=gpsimd waits=(!doubled >= 1)
}}
"""  # noqa: E501


def collective(
    name: str, source: str, result: str, stream: int = 0, *, overlaps: int = 0, after: str = ""
) -> str:
    head = f" overlaps {overlaps}" if overlaps else ""
    waits = f" after=({after})" if after else ""
    return (
        f'kernel "{name}"{head} {{ all_reduce dsts=({result}[0; 2048:128, 1:2048])'
        f" srcs=({source}[0; 2048:128, 1:2048]) groups=((0, 1, 2, 3)) stream={stream}{waits} }}"
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


STORED, SUMMED = "@gpsimd_queue1 - 1", "@sync_collectives0 - 1"


@pytest.mark.parametrize(
    "second",
    [
        kernel("two", "%c", "%d"),
        kernel("two", "%b", "%c"),
        kernel("two", "%b", "%c", overlaps=1, after=STORED),
    ],
    ids=["rest", "rest and need", "come after"],
)
def test_kernels_begin_when_those_before_are_over(second: str) -> None:
    assert total(kernel("one", "%a", "%b"), second) == pytest.approx(2 * ONE, rel=0.01)


def test_others_load_while_results_are_computed_and_stored() -> None:
    both = total(kernel("one", "%a", "%b"), kernel("two", "%c", "%d", overlaps=1))
    assert ONE + 1_000 < both < 2 * ONE - 2_000


def test_no_more_kernels_run_at_a_time_than_overlap() -> None:
    def times(overlaps: int) -> float:
        kernels = (kernel(f"k{n}", "%a", f"%{'bcdefgh'[n]}", overlaps=overlaps) for n in range(7))
        return total(*kernels)

    assert times(3) < times(1) < times(0) == pytest.approx(7 * ONE)


def test_collectives_run_beside_kernels_that_do_not_need_them() -> None:
    machine = smallest_machine(program().target.chip_spec, 1, 4)
    assert machine is not None
    size = 128 * 2048 * 4
    reduced = collective_time("all_reduce", size, 4, machine, in_program=True).total_ns
    alone = total(collective("sum", "%a", "%b"))
    assert alone == pytest.approx(reduced, rel=0.01)
    beside = total(collective("sum", "%a", "%b"), kernel("one", "%c", "%d", overlaps=1))
    after = total(
        collective("sum", "%a", "%b"), kernel("one", "%b", "%d", overlaps=1, after=SUMMED)
    )
    assert beside == pytest.approx(alone, rel=0.01)
    assert after == pytest.approx(alone + ONE, rel=0.01)


def test_streams_overlap_steps_but_share_links() -> None:
    one = total(collective("sum", "%a", "%b"))
    same = total(collective("x", "%a", "%b"), collective("y", "%c", "%d", overlaps=1))
    other = total(collective("x", "%a", "%b"), collective("y", "%c", "%d", stream=1, overlaps=1))
    assert same == pytest.approx(2 * one, rel=0.01)
    assert one < other < same


def test_loops_of_kernels_that_overlap_reach_a_steady_state() -> None:
    body = kernel("one", "%a", "%b", overlaps=2, after=STORED) + kernel(
        "two", "%c", "%d", overlaps=2, after="@gpsimd_queue1 - 2"
    )

    def trips(count: int) -> Timeline:
        return schedule(program(f"loop i in {count} {{ {body} }}"))

    few, many = trips(8), trips(5_000)
    assert many.total_ns == pytest.approx(
        few.total_ns + 4_992 * (few.total_ns - trips(7).total_ns), rel=1e-9
    )
    assert many.kernels[0].runs == 5_000
    assert sum(k.added_ns * k.runs for k in many.kernels) == pytest.approx(
        many.total_ns - many.launch_ns
    )


@pytest.mark.parametrize(("outer", "inner"), [(1, 40), (7, 11)])
def test_runs_in_loops_are_when_they_are_without_loops(outer: int, inner: int) -> None:
    """Also those that the schedule jumps over."""
    body = kernel("one", "%a", "%b", overlaps=2, after=STORED) + kernel(
        "two", "%c", "%d", overlaps=1
    )
    looped = program(f"loop i in {outer} {{ loop j in {inner} {{ {body} }} {body} }}")
    written_out = program((body * inner + body) * outer)

    def runs(code: Program) -> list[tuple[float, float]]:
        found = [run for each in schedule(code).kernels for run in sampled(each.in_time, 10**6)]
        return sorted((round(start, 3), round(end, 3)) for start, end in found)

    assert runs(looped) == runs(written_out)
    few = [*sampled(schedule(looped).kernels[0].in_time, 5)]
    assert few[0] == min(sampled(schedule(looped).kernels[0].in_time, 10**6))
    assert few[-1] == max(sampled(schedule(looped).kernels[0].in_time, 10**6))


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


def test_programs_share_what_is_simulated_without_a_difference() -> None:
    """Programs of two chips in turn, each twice."""
    shared = Simulations()
    programs = list(every().values())
    for program in (*programs, *programs):
        alone = schedule(program)
        beside = schedule(program, simulations=shared)
        assert dataclasses.replace(beside, simulated_instructions=0) == dataclasses.replace(
            alone, simulated_instructions=0
        )
    again = schedule(programs[-1], simulations=shared)
    assert again.simulated_instructions == 0 < schedule(programs[-1]).simulated_instructions


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
        assert max(each.busy_ns.values()) <= each.span_ns * 1.001


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


def test_more_ranks_than_a_machine_has_are_on_several() -> None:
    platform = Platform.of(dataclasses.replace(golden()["all_reduce"], ranks=1_024))
    assert platform.machine == Machine.create("trn2-ultraserver", 2)
