"""Guesses, adapters and separate prompts on the simulated clock, against sums by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from launch.serving.config import EngineConfig
from launch.serving.errors import RequestError, ServingError
from launch.serving.scheduler.buckets import Bucket, Buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.virtual.costs import PROPOSING, Costs, seconds_of_steps
from launch.serving.virtual.disaggregation import simulate_disaggregated
from launch.serving.virtual.guessing import Guessing
from launch.serving.virtual.one_copy import Pace
from launch.serving.virtual.simulation import simulate
from launch.serving.virtual.timings import Machine, Program, Timings
from launch.serving.virtual.traffic import Arrival, TrafficConfig, draw_traffic
from launch.serving.virtual.workloads import PROGRAMS, serving_step
from neuronjax.planning.tracing import abstract_mesh

BUCKETS = Buckets((1, 4), (1,), (16, 64), (4, 16), 64)
LIMITS = SchedulerLimits(256, 64, 16, BUCKETS)
GUESSES = 4
GUESSING = replace(LIMITS, guesses=GUESSES)


def seconds(bucket: Bucket) -> float:
    """A different time for every bucket."""
    return 0.001 * bucket.rows + 0.0001 * bucket.tokens + 0.00001 * bucket.blocks


def checking(bucket: Bucket) -> float:
    """Returns the bucket of a step with guesses."""
    return 10 * seconds(bucket)


def guessing_pace(acceptance_rate: float) -> Pace:
    return Pace(seconds, 1, Guessing(acceptance_rate, checking))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_one_request_takes_the_sum_of_its_steps(rate: float) -> None:
    """After the prompt come 12 tokens: five a step, and the last two in one, or one by one. Guesses
    end where the answer does, and its last token has none."""
    arrival = Arrival(2.0, bytes(100), 13)
    outcome = simulate(GUESSING, guessing_pace(rate), [arrival])
    first = 2.0 + seconds(Bucket(1, 64, 4)) + seconds(Bucket(1, 64, 16))
    assert outcome.first_token[0] == pytest.approx(first, rel=1e-12)
    verify = checking(Bucket(1, 1 + GUESSES, 16))
    plain = seconds(Bucket(1, 1, 16))
    most = {0.0: 11 * verify + plain, 1.0: 3 * verify}[rate]
    assert outcome.finished[0] == pytest.approx(first + most, rel=1e-12)
    assert outcome.between_tokens.count == 12
    assert outcome.counters.accepted_tokens == {0.0: 0, 1.0: 9}[rate]


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.9])
def test_steps_bring_as_many_tokens_as_the_formula_says(rate: float) -> None:
    """(1 - a^(K + 1)) / (1 - a): Leviathan et al., 2023, equation 1."""
    limits = SchedulerLimits(
        20_000, 1300, 16, Buckets((1,), (1,), (16,), (1250,), 16), guesses=GUESSES
    )
    arrival = Arrival(0.0, bytes(8), 19_000)
    outcome = simulate(limits, guessing_pace(rate), [arrival])
    expected = (1 - rate ** (GUESSES + 1)) / (1 - rate)
    assert 19_000 / outcome.counters.decode_steps == pytest.approx(expected, rel=0.03)
    shares = np.array(outcome.counters.accepted_by_position) / outcome.counters.drafts
    np.testing.assert_allclose(shares, rate ** np.arange(1, GUESSES + 1), atol=0.03)


@pytest.mark.parametrize(("rate", "most"), [(0.0, 0.12), (0.05, 0.7)])
def test_guesses_that_are_never_right_are_given_up(rate: float, most: float) -> None:
    """The share of steps with guesses; what is right now and then is tried again."""
    limits = SchedulerLimits(
        2_000, 130, 16, Buckets((1,), (1,), (16,), (125,), 16), guesses=GUESSES
    )
    counters = simulate(limits, guessing_pace(rate), [Arrival(0.0, bytes(8), 1_900)]).counters
    assert 0 < counters.drafts < most * counters.decode_steps
    assert (counters.accepted_tokens > 0) == (rate > 0)


def test_texts_of_an_adapter_share_what_others_do_not() -> None:
    prompt = bytes(40)  # two whole blocks
    adapters = [0, 1, 2, 0, 1, 2, 2]
    arrivals = [Arrival(float(n), prompt, 2, adapter) for n, adapter in enumerate(adapters)]
    outcome = simulate(LIMITS, Pace(seconds), arrivals)
    assert outcome.counters.prefix_hits == 4 * 32
    drawn = draw_traffic(TrafficConfig(num_requests=600, num_adapters=3), 1.0, 256)
    counts = np.bincount([arrival.adapter for arrival in drawn])
    assert counts[0] == 0
    assert (counts[1:] > 150).all()


def moving(blocks: int) -> float:
    return 0.5 + 0.01 * blocks


def test_prompts_and_answers_on_two_copies() -> None:
    """Six of seven blocks move, and the second copy computes 5 tokens that are left of 101; a text
    of one token never moves, and the link carries one after the other."""
    arrivals = [
        Arrival(2.0, bytes(100), 4),
        Arrival(2.0, bytes([1] * 100), 3),
        Arrival(2.0, b"a", 1),
    ]
    outcome = simulate_disaggregated(LIMITS, Pace(seconds), moving, arrivals)
    prompt = seconds(Bucket(1, 64, 4)) + seconds(Bucket(1, 64, 16))
    first = 2.0 + np.array([prompt, 2 * prompt, 2 * prompt + seconds(Bucket(1, 16, 4))])
    np.testing.assert_allclose(outcome.first_token, first, rtol=1e-12)
    arrived = first[0] + moving(6)
    rest, decode = seconds(Bucket(1, 16, 16)), seconds(Bucket(1, 1, 16))
    assert outcome.finished[0] == pytest.approx(arrived + rest + 2 * decode, rel=1e-12)
    assert outcome.finished[1] == pytest.approx(arrived + moving(6) + rest + decode, rel=1e-12)
    assert outcome.finished[2] == outcome.first_token[2]
    assert outcome.between_tokens.count == 3 + 2
    assert outcome.counters.prefix_hits == 2 * 96
    with pytest.raises(RequestError, match="maximum context length"):
        simulate_disaggregated(LIMITS, Pace(seconds), moving, [Arrival(0.0, bytes(200), 99)])


def test_texts_that_lose_their_places_are_computed_again() -> None:
    """The second copy has no room for what comes while it is at a longer text."""
    limits = replace(LIMITS, blocks=16)
    arrivals = [Arrival(0.0, bytes([n] * 100), 100) for n in range(3)]
    outcome = simulate_disaggregated(limits, Pace(seconds), lambda blocks: 1e-6, arrivals)
    assert outcome.counters.preemptions > 0
    assert outcome.counters.generation_tokens == 3 * 100
    assert (outcome.finished > outcome.first_token).all()


CHECK = Bucket(1, 5, 4)


@pytest.mark.parametrize(
    ("method", "plain", "checked"),
    [
        ("ngram", {"step"}, {"checking": CHECK}),
        (
            "draft_model",
            {"step", "following"},
            {"checking": CHECK, "guessing": Bucket(1, 1, 4)},
        ),
        (
            "eagle",
            {"whole step", "eagle reading"},
            {
                "checking": CHECK,
                "eagle guessing": Bucket(1, 1, 4),
                "eagle reading guesses": CHECK,
            },
        ),
        (
            "medusa",
            {"step", "medusa reading"},
            {
                "checking": CHECK,
                "medusa guessing": Bucket(1, 1, 4),
                "medusa reading guesses": CHECK,
            },
        ),
    ],
)
def test_a_step_takes_what_its_programs_take(
    method: str, plain: set[str], checked: Mapping[str, Bucket]
) -> None:
    model = '"model": "1b", ' if method == "draft_model" else ""
    text = f'{{"method": "{method}", {model}"num_speculative_tokens": {GUESSES}}}'
    config = EngineConfig(speculative_config=text, enable_lora=True, max_loras=3)
    machine = Machine(weights="int8", cache_dtype="float8_e4m3")
    costs = Costs.of(machine, GUESSING, config)

    def estimate(program: Program, buckets: Sequence[Bucket]) -> Any:
        """The sum of a number for the program, and one for the bucket."""
        is_ours = program.name in ("step", "whole step", "checking")
        assert (program.adapters, program.machine) == (
            (3, machine) if is_ours else (0, replace(program.machine, weights=None))
        )
        assert program.machine.model == ("70b" if is_ours or not model else "1b")
        for bucket in buckets:
            yield bucket, 100.0 * list(PROGRAMS).index(program.name) + seconds(bucket)

    timed = seconds_of_steps(costs, Timings(), lambda bucket: None, estimate)

    def expected(names: Mapping[str, Bucket]) -> float:
        return sum(100.0 * list(PROGRAMS).index(n) + seconds(b) for n, b in names.items())

    prefill = Bucket(1, 16, 4)
    assert timed.plain[prefill] == pytest.approx(expected(dict.fromkeys(plain, prefill)))
    assert timed.checked[CHECK] == pytest.approx(expected(checked))
    assert set(timed.checked) == {Bucket(r, 5, b) for r in (1, 4) for b in (4, 16)}
    assert method in PROPOSING


def test_blocks_move_between_the_meshes_of_two_copies() -> None:
    costs = Costs.of(Machine(mesh="model=8"), LIMITS, EngineConfig(disaggregated_prefill=True))
    (part,) = costs.transfer
    assert (part.program.name, part.program.machine.mesh) == ("moving", "data=2,model=8")
    timed = seconds_of_steps(
        costs,
        Timings(),
        lambda bucket: None,
        lambda program, buckets: ((bucket, float(bucket.blocks)) for bucket in buckets),
    )
    assert [timed.moving(blocks) for blocks in (1, 4, 5, 16)] == [4, 4, 16, 16]


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("step", [(2,)]),
        ("checking", [(2 * 5,), (2, 5, 2048)]),
        ("whole step", [(2,), (2, 5, 2048)]),
        ("guessing", [(2, GUESSES)]),
        ("eagle guessing", [(2, GUESSES)]),
        ("medusa guessing", [(2, GUESSES)]),
        ("medusa reading", [(3, 2048)]),
        ("medusa reading guesses", [(3, 2048)]),
        ("eagle reading", [(17, 32, 8, 64)]),
        ("eagle reading guesses", [(17, 32, 8, 64)]),
        ("following", [(17, 32, 8, 64)]),
        ("moving", [(1, 2 * 2, 2, 32, 8, 64)]),
    ],
)
def test_programs_are_those_of_the_runner(program: str, result: Sequence[tuple[int, ...]]) -> None:
    """Of a Llama of 2 layers, 2048 wide with 8 key-value heads of 64: 2 rows of 5 tokens."""
    tokens = 1 if program.endswith(" guessing") or program == "guessing" else 5
    made = serving_step(
        abstract_mesh("data=1,model=1"),
        program=program,
        batch=2,
        model="1b",
        tokens=tokens,
        context=64,
        blocks=16,
        guesses=GUESSES,
        layers=2,
    )
    shapes = [
        leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(made["fn"], *made["arguments"]))
    ]
    assert shapes[: len(result)] == list(result)
    assert ("layers" in made) == (not program.startswith(("eagle", "medusa")))


@pytest.mark.parametrize(("cores", "heads"), [(8, 32), (32, 32), (64, 64)])
def test_models_are_padded_as_the_server_pads(cores: int, heads: int) -> None:
    """8B has 32 heads of queries, and as many cores as a machine has."""
    made = serving_step(abstract_mesh(f"model={cores}"), model="8b", context=64, layers=1)
    shapes = {name: leaf.shape for name, leaf in made["arguments"][0].items()}
    assert shapes["blocks.0.attention.query.kernel"] == (4096, heads, 128)


def test_adapters_are_part_of_the_model_that_is_timed() -> None:
    """Two linear maps more for each of seven in a layer: 3 adapters and a text without one."""

    def leaves(adapters: int) -> dict[str, tuple[int, ...]]:
        mesh = abstract_mesh("model=1")
        made = serving_step(mesh, model="1b", context=64, adapters=adapters, lora_rank=8, layers=2)
        return {name: leaf.shape for name, leaf in made["arguments"][0].items()}

    more = {name: shape for name, shape in leaves(3).items() if name not in leaves(0)}
    assert len(more) == 2 * 2 * 7
    assert more["blocks.0.mlp.down.lora.a"] == (4, 8192, 8)
    assert more["blocks.0.mlp.down.lora.b"] == (4, 8, 2048)


def test_an_unknown_draft_model() -> None:
    text = '{"method": "draft_model", "model": "2b", "num_speculative_tokens": 2}'
    with pytest.raises(ServingError, match="'2b' is unknown; a simulation knows 1b, 8b, 70b"):
        Costs.of(Machine(), GUESSING, EngineConfig(speculative_config=text))
