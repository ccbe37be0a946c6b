"""Several engines as one: whoever computes what, answers are those of one engine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from launch.serving.disaggregated import Disaggregated
from launch.serving.engine import Engine
from launch.serving.errors import CrowdedError, RequestError
from launch.serving.grammar import Grammars
from launch.serving.replicas import Replicas
from launch.serving.requests import Request, SamplingParameters
from launch.serving.scheduler.steps import Counters
from launch.serving.virtual.disaggregation import simulate_disaggregated
from launch.serving.virtual.one_copy import Pace
from launch.serving.virtual.traffic import Arrival
from tests.serving.engines import GREEDY, LIMITS, Clients, Model, ask, random_requests, tiny_model
from tests.serving.test_engine import FULL, VOCABULARY, greedy_tokens

SMALL = replace(LIMITS, buckets=replace(LIMITS.buckets, decode_rows=(4,)))


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model(jax.devices("neuron")[:1])


@pytest.fixture(scope="module")
def runners(model: Model) -> list[Any]:
    other = tiny_model(jax.devices("neuron")[1:2])
    return [each.runner(SMALL) for each in (model, other)]


Make = Callable[..., Any]
KINDS: dict[str, Make] = {
    "replicas": Replicas,
    "disaggregated": lambda runners, *rest, **options: Disaggregated(*runners, *rest, **options),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_answers_are_those_of_one_engine(model: Model, runners: list[Any], make: Make) -> None:
    """Greedy ones, and drawn ones with all settings; some leave in the middle."""
    greedy = random_requests(16, 3, VOCABULARY)
    kinds = [SamplingParameters(), FULL]
    drawn = [
        replace(each, sampling=replace(kinds[index % 2], seed=index))
        for index, each in enumerate(random_requests(8, 4, VOCABULARY))
    ]
    alone, clients = Clients(), Clients()
    with Engine(runners[0], SMALL, alone.deliver) as engine:
        expected = [each.tokens for each in ask(engine, alone, drawn)]
    with make(runners, SMALL, clients.deliver) as engine:
        for request in random_requests(6, 5, VOCABULARY):
            engine.submit(request)
            engine.cancel(request.id)
        got = ask(engine, clients, [*greedy, *drawn])
        load = engine.load()
        assert engine.failure is None
        with pytest.raises(RequestError, match="maximum context length"):
            engine.submit(Request("long", [1] * 47, 9))
    greedy_tokens(model, greedy, got[: len(greedy)])
    assert [each.tokens for each in got[len(greedy) :]] == expected
    assert engine.is_idle
    assert (load.slots, load.blocks) == (8, 80)


class Spelled:
    """A grammar of one text."""

    def __init__(self, tokens: list[int]) -> None:
        self._left = tokens

    def mask(self) -> np.ndarray:
        return np.array([1 << self._left[0]], np.uint32)

    def accept(self, token: int) -> bool:
        assert token == self._left[0]
        self._left = self._left[1:]
        return bool(self._left)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("spelled", [[7], [3, 1, 4, 1, 5]], ids=["a token", "several"])
def test_grammars_go_with_their_answers(runners: list[Any], make: Make, spelled: list[int]) -> None:
    clients = Clients()
    with make(runners, SMALL, clients.deliver) as engine:
        request = Request("a", [1, 2], 9, GREEDY, grammar=Spelled(spelled))
        (answer,) = ask(engine, clients, [request])
    assert (answer.tokens, answer.finished) == (spelled, "stop")


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_bounds_go_with_their_answers(runners: list[Any], make: Make) -> None:
    """Tokens of an answer are numbered from its first one, whoever draws it."""
    clients, grammars = Clients(), Grammars(None, VOCABULARY)
    bounds = {"stop_tokens": frozenset({5}), "allowed_tokens": {5, 6, 7}}
    request = Request("a", [1, 2], 9, GREEDY, min_tokens=3, banned=[[6, 7], [7]], **bounds)
    with make(runners, SMALL, clients.deliver) as engine:
        (answer,) = ask(engine, clients, [replace(request, grammar=grammars.of(request))])
    assert answer.tokens[:3] == [6, 6, 6]
    assert set(answer.tokens[3:]) <= {5, 6}


class Endless(Spelled):
    """A grammar that is beyond what can be computed after its first token."""

    def accept(self, token: int) -> bool:
        raise RequestError("too many expressions")


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_a_grammar_that_fails_ends_its_answer_alone(runners: list[Any], make: Make) -> None:
    clients = Clients()
    with make(runners, SMALL, clients.deliver) as engine:
        requests = [Request(str(n), [1, 2], 9, GREEDY) for n in range(3)]
        requests[1] = replace(requests[1], grammar=Endless([7]))
        first, failed, last = ask(engine, clients, requests)
    assert (failed.finished, failed.error) == ("error", "too many expressions")
    assert (first.finished, last.finished) == ("length", "length")
    assert first.tokens == last.tokens


def test_a_request_goes_where_its_beginning_lies(runners: list[Any]) -> None:
    clients = Clients()
    stem = list(range(20))
    with Replicas(runners, SMALL, clients.deliver) as engine:
        ask(engine, clients, [Request("a", [*stem, 1], 3, GREEDY)])
        later = [Request(str(index), [*stem, index], 3, GREEDY) for index in range(4)]
        for request in later:
            ask(engine, clients, [request])
        assert engine.load().counters.prefix_hits == 4 * 20
        # Many at once do not wait for one cache.
        crowd = [Request(f"c{index}", [*stem, index], 8, GREEDY) for index in range(8)]
        ask(engine, clients, crowd)
        loads = [each.load().counters.generation_tokens for each in engine._engines]
        assert min(loads) > 0


def test_blocks_move(runners: list[Any]) -> None:
    clients = Clients()
    with Disaggregated(*runners, SMALL, clients.deliver) as engine:
        ask(engine, clients, [Request("a", list(range(30)), 6, GREEDY)])
        assert engine.moved_blocks == 30 // SMALL.block_size
        # The second engine computed what is left of the last block, and the answer.
        counters = engine._decode.load().counters
        assert counters.prefix_hits == 28


def test_the_simulation_does_what_two_engines_do(runners: list[Any]) -> None:
    """Texts that come one after the other; the third is one that was there before."""
    clients = Clients()
    texts = [(30, 6, 0), (9, 5, 1), (30, 6, 0), (3, 1, 2), (21, 9, 3)]
    requests = [
        Request(str(index), [value, *range(length)], count, GREEDY)
        for index, (length, count, value) in enumerate(texts)
    ]
    with Disaggregated(*runners, SMALL, clients.deliver) as engine:
        for request in requests:
            ask(engine, clients, [request])
        counters = engine.load().counters
        moved = engine.moved_blocks
    arrivals = [
        Arrival(float(index), bytes(request.prompt), request.max_tokens)
        for index, request in enumerate(requests)
    ]
    blocks: list[int] = []

    def moving(count: int) -> float:
        blocks.append(count)
        return 1e-3

    outcome = simulate_disaggregated(SMALL, Pace(lambda bucket: 1e-3), moving, arrivals)
    assert outcome.counters == counters
    assert sum(blocks) == moved


def test_a_full_queue_is_told(runners: list[Any]) -> None:
    clients = Clients()
    with (
        Disaggregated(*runners, SMALL, clients.deliver, max_waiting=0) as engine,
        pytest.raises(CrowdedError, match="0 requests of this client"),
    ):
        engine.submit(Request("b", [1], 1))


def test_counters_of_engines_with_and_without_guesses_add_up() -> None:
    """One that only prefills guesses nothing, so it has no positions."""
    parts = [
        Counters(decode_steps=2),
        Counters(decode_steps=3, accepted_tokens=6, accepted_by_position=(4, 2)),
    ]
    expected = Counters(decode_steps=5, accepted_tokens=6, accepted_by_position=(4, 2))
    assert Counters.total(parts) == expected
