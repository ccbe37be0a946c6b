"""The simulated clock against sums by hand, queueing theory, and the timing model."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from launch.serving.errors import RequestError, ServingError
from launch.serving.scheduler.buckets import Bucket, Buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.virtual.curves import curves
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.one_copy import Pace
from launch.serving.virtual.report import Objective, knee, summarise, table, write
from launch.serving.virtual.simulation import simulate
from launch.serving.virtual.summary import Summary
from launch.serving.virtual.sweep import combinations, search
from launch.serving.virtual.timings import (
    WORKLOAD,
    Estimate,
    Machine,
    Program,
    Timings,
    seconds_of,
)
from launch.serving.virtual.traffic import (
    LENGTHS,
    Arrival,
    TrafficConfig,
    draw_traffic,
    read_trace,
)
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import load
from tests import forked

SVG = "{http://www.w3.org/2000/svg}"
BUCKETS = Buckets((1, 4), (1,), (16, 64), (4, 16), 64)
LIMITS = SchedulerLimits(256, 64, 16, BUCKETS)


def seconds(bucket: Bucket) -> float:
    """A different time for every bucket."""
    return 0.001 * bucket.rows + 0.0001 * bucket.tokens + 0.00001 * bucket.blocks


def test_one_request_takes_the_sum_of_its_steps() -> None:
    # 100 tokens are chunks of 64 and 36; then nine steps of decoding, at first with 7 blocks.
    arrival = Arrival(2.0, bytes(100), 10)
    outcome = simulate(LIMITS, Pace(seconds), [arrival])
    first = 2.0 + seconds(Bucket(1, 64, 4)) + seconds(Bucket(1, 64, 16))
    assert outcome.first_token[0] == pytest.approx(first, rel=1e-12)
    assert outcome.finished[0] == pytest.approx(first + 9 * seconds(Bucket(1, 1, 16)), rel=1e-12)
    assert (outcome.steps, outcome.between_tokens.count) == (11, 9)


def test_every_step_takes_what_the_table_says() -> None:
    arrivals = draw_traffic(TrafficConfig(num_requests=60, lengths="40:12"), 50.0, LIMITS.longest)
    ends: list[tuple[Bucket, float]] = []
    outcome = simulate(
        LIMITS, Pace(seconds), arrivals, on_step=lambda step, end: ends.append((step.bucket, end))
    )
    times = np.array([end for _, end in ends])
    assert (np.diff(times) >= 0).all()
    assert outcome.busy == pytest.approx(sum(seconds(bucket) for bucket, _ in ends))
    # While the device is busy, a step begins when the one before ends.
    gaps = np.diff(times) - [seconds(bucket) for bucket, _ in ends[1:]]
    assert (gaps > -1e-12).all()
    assert (np.abs(gaps) < 1e-12).mean() > 0.5
    assert outcome.between_tokens.count == sum(arrival.max_tokens - 1 for arrival in arrivals)


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("rate", [0.5, 8.0, 100.0])
def test_leaps_over_equal_steps_change_nothing(rate: float, ahead: int) -> None:
    """At low load, at high load, and with more requests than slots and blocks."""
    limits = replace(LIMITS, blocks=24)
    config = TrafficConfig(num_requests=80, lengths="alpaca", shared_prefix=20)
    arrivals = draw_traffic(config, rate, limits.longest)
    steps = []
    slow = simulate(
        limits, Pace(seconds, ahead), arrivals, on_step=lambda *step: steps.append(step)
    )
    quick = simulate(limits, Pace(seconds, ahead), arrivals)
    assert slow.steps == quick.steps == len(steps)
    assert slow.counters == quick.counters
    assert slow.busy == quick.busy
    np.testing.assert_array_equal(slow.first_token, quick.first_token)
    np.testing.assert_array_equal(slow.finished, quick.finished)
    assert slow.between_tokens == quick.between_tokens


def test_a_queue_of_one_place_is_an_m_d_1_queue() -> None:
    """One request at a time with a fixed time of service: Pollaczek and Khinchine's mean wait."""
    limits = SchedulerLimits(64, 4, 16, Buckets((1,), (1,), (16,), (4,), 16))
    service, load = 0.01, 0.7
    arrivals = draw_traffic(TrafficConfig(num_requests=10_000, lengths="8:1"), load / service, 64)
    outcome = simulate(limits, Pace(lambda bucket: service, 0), arrivals)
    wait = (outcome.to_first - service).mean()
    assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


def test_traffic_has_the_lengths_and_rates_that_were_asked_for() -> None:
    config = TrafficConfig(num_requests=20_000, arrivals="bursts", shared_prefix=5)
    arrivals = draw_traffic(config, 8.0, 1 << 20)
    lengths = np.array([len(arrival.prompt) for arrival in arrivals])
    answers = np.array([arrival.max_tokens for arrival in arrivals])
    assert lengths.mean() == pytest.approx(LENGTHS["sharegpt"].prompt_mean + 5, rel=0.05)
    assert answers.mean() == pytest.approx(LENGTHS["sharegpt"].answer_mean, rel=0.05)
    assert len({arrival.prompt[:5] for arrival in arrivals}) == 1
    when = np.array([arrival.seconds for arrival in arrivals])
    assert (np.diff(when) >= 0).all()
    assert len(when) / when[-1] == pytest.approx(8.0, rel=0.1)
    assert (np.diff(when) == 0).mean() > 0.8  # bursts
    assert arrivals == draw_traffic(config, 8.0, 1 << 20)


def test_a_shared_prefix_is_computed_once() -> None:
    config = TrafficConfig(num_requests=50, lengths="20:4", shared_prefix=64)
    outcome = simulate(LIMITS, Pace(seconds), draw_traffic(config, 1.0, LIMITS.longest))
    assert outcome.counters.prefix_hits == 49 * 64


def test_more_load_is_slower_and_the_knee_is_where_it_breaks(tmp_path: Path) -> None:
    objective = Objective(slo_ttft=0.05, slo_tpot=0.02, price=3.6)
    config = TrafficConfig(num_requests=300, lengths="40:20")
    runs = [
        summarise(simulate(LIMITS, Pace(seconds), draw_traffic(config, rate, 256)), rate, objective)
        for rate in (1.0, 10.0, 1000.0)
    ]
    assert runs[0].ttft[0] < runs[2].ttft[0]
    assert runs[0].within_slo == 1
    assert runs[2].within_slo < 0.5
    best = knee(runs)
    assert best is not None
    assert best.rate in (1.0, 10.0)
    # 3.60 dollars an hour are 0.001 a second.
    tokens = 300 * 20
    assert runs[0].usd_per_million_tokens == pytest.approx(runs[0].duration * 1e3 / tokens)
    write(runs, tmp_path, {"machine": "x"})
    assert json.loads((tmp_path / "traffic.json").read_text())["knee"] == best.rate
    svg = curves(runs)
    assert (tmp_path / "traffic.svg").read_text() == svg
    assert svg in (tmp_path / "traffic.html").read_text()
    marks = [mark.text for mark in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert f"p50 time to first token, s: {runs[2].ttft[0]:.4g} at 1000 requests per second" in marks
    assert len(marks) == 3 * (3 + 3 + 1 + 1)
    assert len(table(runs).splitlines()) == 4
    on_two = summarise(
        simulate(LIMITS, Pace(seconds), draw_traffic(config, 1.0, 256)), 1.0, objective, 2
    )
    assert on_two.usd_per_million_tokens == pytest.approx(runs[0].duration * 2e3 / tokens)


def test_latencies_have_their_quantiles() -> None:
    values = np.random.default_rng(0).lognormal(-3, 1, 10_000)
    latencies = Latencies()
    latencies.add(values[:6000])
    latencies.add(values[6000:])
    assert latencies.count == 10_000
    for share in (0.5, 0.9, 0.99):
        assert latencies.quantile(share) == pytest.approx(np.quantile(values, share), rel=0.005)
    assert math.isnan(Latencies().quantile(0.5))


@pytest.mark.slow
def test_the_times_are_those_of_the_estimate(tmp_path: Path) -> None:
    machine = Machine(model="1b", target="trn2.3xlarge", mesh="model=1")
    limits = SchedulerLimits(64, 16, 32, Buckets((2,), (1,), (32,), (2,), 32))
    program = Program(machine, limits.block_size, limits.blocks)
    file = tmp_path / "timings.json"
    timings = Timings(file).of(program, limits.buckets)
    factory = load(WORKLOAD, {"model": "1b", "context": 64, "blocks": 16})
    mesh = abstract_mesh("model=1")
    estimate = of_factory(factory, setting_of("trn2.3xlarge", None), mesh, batch=2)
    assert timings[Bucket(2, 1, 2)] == estimate.step_seconds
    assert timings[Bucket(1, 32, 2)] > 0
    assert Timings(file).of(program, limits.buckets, estimate=by_hand([])) == timings


def by_hand(asked: list[Bucket]) -> Estimate:
    """Gives the times of `seconds`, and notes what is asked for."""

    def estimate(program: Program, buckets: Sequence[Bucket]) -> Iterator[tuple[Bucket, float]]:
        for bucket in buckets:
            asked.append(bucket)
            yield bucket, seconds(bucket)

    return estimate


def test_times_that_are_known_are_not_estimated_again(tmp_path: Path) -> None:
    """Also if only some are, as after an interruption; those of other machines are kept."""
    file = tmp_path / "deep" / "timings.json"
    few = replace(LIMITS, buckets=replace(BUCKETS, decode_rows=(4,)))
    asked: list[Bucket] = []
    Timings(file).of(Program(Machine(), 16, 64), few.buckets, estimate=by_hand(asked))
    assert asked == list(few.buckets)
    known = Timings(file).of(Program(Machine(), 16, 64), BUCKETS, estimate=by_hand(asked))
    assert sorted(asked) == sorted(LIMITS.buckets)
    assert known == {bucket: seconds(bucket) for bucket in LIMITS.buckets}
    Timings(file).of(Program(Machine(mesh="model=32"), 16, 64), BUCKETS, estimate=by_hand(asked))
    assert len(asked) == 2 * len(list(LIMITS.buckets))
    assert Timings(file).of(Program(Machine(), 16, 64), BUCKETS, estimate=by_hand(asked)) == known
    assert len(asked) == 2 * len(list(LIMITS.buckets))


@pytest.mark.parametrize("ahead", [0, 1])
def test_two_copies_do_twice_the_work_of_one(ahead: int) -> None:
    """Every request comes twice: each copy answers it when one copy would answer it alone."""
    config = TrafficConfig(num_requests=60, lengths="alpaca", shared_prefix=20)
    arrivals = draw_traffic(config, 30.0, LIMITS.longest)
    alone = simulate(LIMITS, Pace(seconds, ahead), arrivals)
    twice = [arrival for arrival in arrivals for _ in range(2)]
    both = simulate(LIMITS, Pace(seconds, ahead), twice, copies=2)
    np.testing.assert_array_equal(both.first_token.reshape(-1, 2).T, [alone.first_token] * 2)
    np.testing.assert_array_equal(both.finished.reshape(-1, 2).T, [alone.finished] * 2)
    assert (both.steps, both.busy) == (2 * alone.steps, alone.busy)
    assert both.counters.prefix_hits == 2 * alone.counters.prefix_hits > 0


def test_requests_go_to_the_copy_that_has_their_beginning() -> None:
    first, other = bytes(64), bytes([1] * 64)
    arrivals = [Arrival(number, first if number % 2 else other, 4) for number in range(12)]
    outcome = simulate(LIMITS, Pace(seconds), arrivals, copies=2)
    assert outcome.counters.prefix_hits == 10 * 48  # the last of four blocks holds the last token


def test_the_knee_is_searched_for() -> None:
    """Faster than one in 20 ms, each request waits longer than the one before: nine tenths of them
    wait for at most 10 ms up to the rate at which that is what the 180th waits for."""
    limits = SchedulerLimits(64, 4, 16, Buckets((1,), (1,), (16,), (4,), 16))
    objective = Objective(slo_ttft=0.03)

    def run(rate: float) -> Summary:
        arrivals = [Arrival(number / rate, bytes(8), 1) for number in range(200)]
        return summarise(simulate(limits, Pace(lambda bucket: 0.02), arrivals), rate, objective)

    best = knee(search(run))
    assert best is not None
    highest = 1 / (0.02 - 0.01 / 180)
    assert highest / 1.023 <= best.rate <= highest


def test_combinations_of_a_sweep() -> None:
    known = ("mesh", "max_num_seqs")
    assert combinations([], known) == [{}]
    made = combinations(["mesh=model=2/data=2,model=1", "max_num_seqs=4/8"], known)
    assert len(made) == 4
    assert made[2] == {"mesh": "data=2,model=1", "max_num_seqs": "4"}
    for bad in ("mesh", "mesh=", "mesh=a//b", "rows=1"):
        with pytest.raises(ServingError, match=f"--sweep={bad}: write NAME=VALUE/VALUE"):
            combinations([bad], known)


def test_settings_are_compared(tmp_path: Path) -> None:
    """Two copies on two cores carry about twice as much; four are more than the machine has, and
    one on five cores is no mesh of it."""
    machine = Machine(model="1b", target="trn2.3xlarge", mesh="data=1,model=1")
    file, out = tmp_path / "timings.json", tmp_path / "out"
    Timings(file).of(Program(machine, 16, 64), BUCKETS, estimate=by_hand([]))
    settings = {
        "model": "1b",
        "target": "trn2.3xlarge",
        "max_model_len": 256,
        "block_size": 16,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_seqs_buckets": "1,4",
        "prefill_rows_buckets": 1,
        "prefill_buckets": "16,64",
        "context_buckets": "64,256",
        "num_requests": 100,
        "lengths": "40:12",
        "slo_ttft": 0.1,
        "price": 3.6,
        "timings": file,
        "out": out,
        "sweep": "mesh=model=1/data=2/data=5",
    }
    flags = (f"--{name}={value}" for name, value in settings.items())
    done = forked.run(["-m", "launch.traffic", *flags])
    assert done.returncode == 0, done.stderr
    assert "impossible: --mesh=data=5 has 5 cores, but trn2.3xlarge has 4" in done.stdout
    assert "most tokens/s: mesh=data=2" in done.stdout
    told = json.loads((out / "sweep.json").read_text())
    assert told["best"] == {"mesh": "data=2"}
    one, two, five = told["cases"]
    assert 1.6 < two["knee"]["rate"] / one["knee"]["rate"] < 2.4
    assert five["knee"] is None
    assert "5 cores" in five["why"]
    assert json.loads((out / "2" / "traffic.json").read_text())["knee"] == two["knee"]["rate"]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--trace=/nowhere", "the trace /nowhere cannot be read"),
        ("--model=80b", "<1b|8b|70b>"),
        ("--acceptance_rate=0.7", "--speculative_config and --acceptance_rate need each other"),
        ("--num_adapters=2", "give --enable_lora --max_loras=2"),
        ("--lora_modules=a=b", "write --enable_lora --num_adapters=2"),
        ("--scan_layers", "which a simulation does not tell: leave it out"),
        ("--disaggregated_prefill", "needs two copies of the model, not 1"),
    ],
)
def test_bad_flags_are_told_before_buckets_are_timed(flag: str, message: str) -> None:
    done = forked.run(["-m", "launch.traffic", flag])
    assert done.returncode == 1
    assert message in done.stderr
    assert "buckets" not in done.stderr


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="--lengths=x"):
        draw_traffic(TrafficConfig(lengths="x"), 1.0, 100)
    trace = tmp_path / "trace.jsonl"
    for line in ("{", "{}", '{"seconds": 1, "prompt_tokens": 0, "answer_tokens": 1}', "[]"):
        trace.write_text('{"seconds": 0, "prompt_tokens": 3, "answer_tokens": 1}\n' + line)
        with pytest.raises(ServingError, match=r"trace.jsonl:2"):
            read_trace(trace, 100)
    with pytest.raises(ServingError, match="cannot be read"):
        read_trace(tmp_path / "none", 100)
    (tmp_path / "timings.json").write_text("[]")
    with pytest.raises(ServingError, match="holds no times"):
        Timings(tmp_path / "timings.json")
    with pytest.raises(RequestError, match="maximum context length"):
        simulate(LIMITS, Pace(seconds), [Arrival(0.0, bytes(300), 1)])
    bucket = Bucket(1, 1, 4)
    with pytest.raises(ServingError, match="cannot be estimated: no such mesh"):
        seconds_of({"estimate": None, "error": "no such mesh"}, bucket)
    full = {"memory": {"cache": 3 << 30}, "capacity_bytes": 2 << 30}
    with pytest.raises(ServingError, match="on a core, of which there are 2"):
        seconds_of({"estimate": full, "error": None}, bucket)
