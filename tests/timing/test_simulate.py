"""Kernels in time: order, semaphores, shared DMA engines, and loops that are jumped over."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neuronjax.errors import MalformedProgramError
from neuronjax.program.program import Kernel, Program
from neuronjax.program.text import parse
from neuronjax.program.walk import kernels
from neuronjax.timing import simulate as simulation
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.encoding import PS, Assumptions, compile_kernel
from neuronjax.timing.platform import Platform
from neuronjax.timing.schedule import profile, schedule
from neuronjax.timing.simulate import Simulated, simulate
from tests.timing.programs import Stage, every, loop_of, pipeline, run_ahead, unsynchronised

PROGRAMS = every()


def simulated(program: Program, kernel: Kernel | None = None, events: int = 0) -> Simulated:
    platform = Platform.of(program)
    kernel = kernel or next(each for _, each in kernels(program))
    return simulate(compile_kernel(kernel, platform, Assumptions()), platform, events)


def times(result: Simulated) -> tuple[object, ...]:
    """All but how many instructions were gone through, and events."""
    return (
        result.duration,
        result.busy,
        result.dma_busy,
        result.dma_active,
        result.collective_busy,
        result.start,
        result.left,
        result.completed,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_jumps_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS[name]
    fast = [times(simulated(program, kernel)) for _, kernel in kernels(program)]
    monkeypatch.setattr(simulation, "FEWEST_RUNS", 10**15)
    assert fast == [times(simulated(program, kernel)) for _, kernel in kernels(program)]


STAGES = st.builds(
    Stage,
    st.sampled_from(["vector", "scalar", "dma"]),
    st.sampled_from([16, 200, 1_500]),
    st.booleans(),
)


@given(
    st.lists(STAGES, min_size=1, max_size=4),
    st.sampled_from([(40,), (2, 30), (30, 3), (5, 4, 7)]),
    st.integers(1, 3),
    st.integers(0, 4),
)
@example(
    [Stage("vector", 16, True), *2 * [Stage("dma", 16, True)], Stage("dma", 200, False)],
    (40,),
    2,
    0,
)
def test_a_jump_and_a_record_are_going_through_every_trip(
    stages: list[Stage], trips: tuple[int, ...], slots: int, before: int
) -> None:
    program = loop_of(stages, trips, slots, before)
    every_trip = simulated(program, events=10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "FEWEST_RUNS", 1)
        jumped = simulated(program)
    assert times(jumped) == times(every_trip)
    timeline = schedule(program)
    assert round((timeline.total_ns - timeline.launch_ns) * PS) == every_trip.duration
    assert max(
        round(event.end_ns * PS) for event in profile(program, "loop", most_events=10**6)
    ) <= (every_trip.duration)


@pytest.mark.parametrize(
    ("program", "most"),
    [(pipeline(20_000), 60), (unsynchronised(10**6), 60), (run_ahead(10**6), 400)],
    ids=["pipeline", "unsynchronised", "run ahead"],
)
def test_long_loops_are_jumped_over(program: Program, most: int) -> None:
    assert simulated(program).simulated < most


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_numbers_every_run(name: str) -> None:
    program = PROGRAMS[name]
    for _, kernel in kernels(program):
        assert simulated(program, kernel) == simulated(program, kernel)


def chain(waits: str) -> Program:
    return parse(
        f"""
program "chain" target trainium1 lnc 1 {{
  kernel "chain" {{
    semaphore !made
    sbuf %a : float32[128, 1120]
    sbuf %b : float32[128, 1400]
    memset dst=%a<0, 128>[0; 1:1120] value=#1.0 signals=(!made += 1)
    activation dst=%b<0, 128>[0; 1:1400] op=square data=%b<0, 128>[0; 1:1400]{waits}
  }}
}}
"""
    )


def test_engines_run_beside_each_other_unless_semaphores_say_otherwise() -> None:
    beside = simulated(chain("")).duration
    after = simulated(chain(" waits=(!made >= 1)")).duration
    vector = 1120 + CALIBRATION.engine_latency_cycles
    scalar = 1400 + CALIBRATION.engine_latency_cycles
    assert beside == pytest.approx(max(vector / 1.12, scalar / 1.4) * PS, abs=2)
    both = vector / 1.12 + CALIBRATION.wake_ns + scalar / 1.4
    assert after == pytest.approx(both * PS, abs=2)


def test_a_wait_for_ever_is_an_error() -> None:
    with pytest.raises(MalformedProgramError, match="wait forever at activation"):
        simulated(chain(" waits=(!made >= 2)"))


def duration_of(target: str, *lines: str) -> int:
    """The time of a kernel in ps."""
    body = "\n".join(lines)
    return simulated(
        parse(f'program "p" target {target} lnc 1 {{\nkernel "k" {{\n{body}\n}}\n}}')
    ).duration


def test_dependent_instructions_of_an_engine_wait_for_its_results() -> None:
    """K5: 264 cycles from one to the next that needs it, 64 if it does not."""

    def ends(source: str) -> int:
        return duration_of(
            "trainium1",
            "sbuf %a : float32[128, 1]",
            "sbuf %b : float32[128, 1]",
            "activation dst=%a<0, 128>[0; 1:1] op=square data=%b<0, 128>[0; 1:1]",
            f"activation dst=%b<0, 128>[0; 1:1] op=square data={source}<0, 128>[0; 1:1]",
        )

    cycle = PS / 1.4
    assert ends("%a") - ends("%b") == pytest.approx((264 - 64) * cycle, rel=0.01)


@pytest.mark.parametrize(("first", "count", "waits"), [(1, 64, False), (2, 63, True)])
def test_columns_between_those_that_are_written_are_free(
    first: int, count: int, waits: bool
) -> None:
    def ends(source: str) -> int:
        columns = f"[{first}; 2:{count}]"
        return duration_of(
            "trainium2",
            "sbuf %a : float32[128, 128]",
            "sbuf %b : float32[128, 128]",
            "sbuf %c : float32[128, 64]",
            "tensor_copy dst=%a<0, 128>[0; 2:64] src=%b<0, 128>[0; 2:64] engine=vector",
            f"tensor_copy dst=%c<0, 128>[0; 1:{count}] src={source}<0, 128>{columns} engine=vector",
        )

    assert (ends("%a") > ends("%b")) == waits


def test_other_functions_load_their_tables() -> None:
    def duration(*functions: str) -> int:
        lines = "\n".join(
            f"activation dst=%a<0, 128>[0; 1:1] op={function} data=%b<0, 128>[0; 1:1]"
            for function in functions
        )
        return simulated(
            parse(
                'program "p" target trainium2 lnc 1 { kernel "k" { sbuf %a : float32[128, 1]\n'
                f"sbuf %b : float32[128, 1]\n{lines}\n}} }}"
            )
        ).duration

    load = round(CALIBRATION.activation_table_ns * PS)
    assert duration("exp", "exp") - duration("copy", "copy") == load
    assert duration("exp", "tanh") - duration("exp", "exp") == load
    assert duration("exp", "copy", "exp") == duration("exp", "exp", "copy")


def test_the_tensor_engine_warms_up() -> None:
    """Trn2: half the clock until it has been busy for a window of 3 µs; Trn1: never."""

    def per_product(chip: str, trips: int) -> float:
        program = parse(
            f"""
program "p" target {chip} lnc 1 {{
  kernel "k" {{
    sbuf %a : bfloat16[128, 128]
    sbuf %b : bfloat16[128, 512]
    psum %c : float32[128, 512]
    loop i in {trips} {{
      nc_matmul dst=%c<0, 128>[0; 1:512] stationary=%a<0, 128>[0; 1:128] moving=%b<0, 128>[0; 1:512]
    }}
  }}
}}
"""
        )
        return simulated(program).busy[0] / trips / PS

    assert per_product("trainium2", 1) == pytest.approx(2 * 512 / 2.4, rel=1e-4)
    assert per_product("trainium2", 10_000) == pytest.approx(512 / 2.4, rel=0.01)
    assert per_product("trainium1", 1) == pytest.approx(512 / 2.8, rel=1e-4)
    slow = 10_000 * (per_product("trainium2", 10_000) - 512 / 2.4)
    assert 1_000 < slow < 3_000


def loads(queues: int, *, rows: int = 128, count: int = 16) -> Program:
    lines = "\n".join(
        f"dma_copy queue={index % queues} dst=%t{{{index}}}<0, {rows}>[0; 1:4096]"
        f" src=%x[0; 4096:{rows}, 1:4096]"
        for index in range(count)
    )
    return parse(
        f"""
program "loads" target trainium2 lnc 1 {{
  hbm %x : float32[128, 4096] argument
  kernel "loads" {{
    sbuf %t : float32[128, 4096] slots {count}
    {lines}
  }}
}}
"""
    )


def test_queues_share_the_engines() -> None:
    one, many = simulated(loads(1)).duration, simulated(loads(8)).duration
    assert many == one


def test_small_transfers_of_one_queue_follow_in_intervals() -> None:
    one, many = simulated(loads(1, rows=1)).duration, simulated(loads(8, rows=1)).duration
    assert one > many + 13 * 865 * PS


def test_events_are_recorded_in_order_for_a_window() -> None:
    result = simulated(pipeline(50), events=40)
    assert len(result.events) == 40
    assert all(event.start <= event.end <= result.duration for event in result.events)
    assert times(result) == times(simulated(pipeline(50)))


def test_slots_decide_overlap() -> None:
    single, double = simulated(pipeline(64, slots=1)), simulated(pipeline(64, slots=2))
    assert double.duration < 0.7 * single.duration


def test_a_loop_without_steady_state_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its later half counts, which is near what the whole of it takes."""
    exact = simulated(pipeline(5_000))
    monkeypatch.setattr(simulation, "PERIODS", (3,))
    monkeypatch.setattr(simulation, "MOST_WATCHED", 101)
    near = simulated(pipeline(5_000))
    assert near.simulated < 3 * 300
    assert near.duration == pytest.approx(exact.duration, rel=0.01)
    assert near.duration >= max(near.busy)
