"""The engine on tiny models: what is asked for at once is answered as if it were asked alone."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.serving.config import EngineConfig
from launch.serving.engine import Engine
from launch.serving.errors import CrowdedError, OverloadedError, RequestError, ServingError
from launch.serving.requests import Request, SamplingParameters
from launch.serving.runner.sizes import layer_windows
from models.decoder.cache_groups import CacheGroups, reaches_within
from tests.models.test_decoder import run
from tests.serving.engines import (
    GREEDY,
    LIMITS,
    Answer,
    Clients,
    Model,
    ask,
    random_requests,
    tiny_model,
)

VOCABULARY = 32


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model(jax.devices("neuron")[:1])


@pytest.fixture(scope="module")
def runner(model: Model):  # type: ignore[no-untyped-def]
    return model.runner()


def greedy_tokens(model: Model, requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    """Every answer is what a forward pass over its whole text finds likeliest, token by token."""
    texts = np.zeros((len(requests), 48), np.int32)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        text = [*request.prompt, *answer.tokens]
        texts[row, : len(text)] = text
    likeliest = np.argmax(np.asarray(run(model.graph, model.parameters, texts)), axis=-1)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        first = len(request.prompt) - 1
        expected = likeliest[row, first : first + len(answer.tokens)].tolist()
        assert (answer.tokens, answer.finished) == (expected, "length")
        assert len(answer.tokens) == request.max_tokens


@pytest.mark.slow
@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    blocks=st.integers(12, 40),
    ahead=st.integers(0, 2),
    prefix_caching=st.booleans(),
    patience=st.integers(1, 4),
)
def test_no_schedule_changes_an_answer(
    model: Model,
    runner,  # type: ignore[no-untyped-def]
    seed: int,
    blocks: int,
    ahead: int,
    prefix_caching: bool,
    patience: int,
) -> None:
    clients = Clients()
    requests = random_requests(12, seed, VOCABULARY)
    limits = replace(
        LIMITS, blocks=blocks, prefix_caching=prefix_caching, prefills_per_decode=patience
    )
    with Engine(runner, limits, clients.deliver, steps_ahead=ahead) as engine:
        answers = ask(engine, clients, requests)
    greedy_tokens(model, requests, answers)


@pytest.mark.slow
def test_layers_that_see_a_part_of_the_text() -> None:
    """Texts whose early blocks have gone to others meanwhile, in a cache that is too small for all
    of them: answers are those of whole texts, and nothing is left of them."""
    kinds = {"sliding_window": 6, "sliding_layers": (0,), "attention_chunk_size": 8}
    model = tiny_model(jax.devices("neuron")[:1], num_layers=3, chunked_layers=(1,), **kinds)
    groups = CacheGroups.by_reach(reaches_within(model.config, LIMITS.context))
    windows = layer_windows(EngineConfig(), model.config, LIMITS.context)
    assert len(windows) == groups.count
    limits = replace(LIMITS, blocks=groups.count * 22, windows=windows)
    runner = model.runner(limits, cache_groups=groups)
    clients = Clients()
    requests = random_requests(16, 5, VOCABULARY)
    with Engine(runner, limits, clients.deliver) as engine:
        answers = ask(engine, clients, requests)
        load = engine.load()
    greedy_tokens(model, requests, answers)
    assert load.counters.prefix_hits > 0
    assert load.blocks_held == 0


FULL = SamplingParameters(
    temperature=1.3,
    top_k=12,
    top_p=0.9,
    min_p=0.01,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    logit_bias={3: 2.0, 5: -100.0},
    logprobs=2,
)


def test_draws_depend_on_the_seed_and_not_on_the_batch(runner) -> None:  # type: ignore[no-untyped-def]
    kinds = [SamplingParameters(), FULL, GREEDY, replace(FULL, temperature=0)]
    requests = [
        replace(request, sampling=replace(kinds[index % 4], seed=index % 8))
        for index, request in enumerate(random_requests(24, 2, VOCABULARY))
    ]
    together, alone = Clients(), Clients()
    with Engine(runner, LIMITS, together.deliver) as engine:
        crowd = ask(engine, together, requests)
    limits = replace(LIMITS, prefix_caching=False)
    with Engine(runner, limits, alone.deliver, steps_ahead=0) as engine:
        for request, answer in zip(requests, crowd, strict=True):
            (single,) = ask(engine, alone, [request])
            assert single.tokens == answer.tokens
            assert [entry.tokens for entry in single.logprobs] == [
                entry.tokens for entry in answer.logprobs
            ]
    other = replace(requests[0], id="other", sampling=SamplingParameters(seed=99))
    again = replace(other, id="again", max_tokens=16)
    with Engine(runner, LIMITS, alone.deliver) as engine:
        first, second = ask(engine, alone, [replace(other, max_tokens=16), again])
    assert first.tokens == second.tokens


def test_a_mesh_that_splits_the_heads() -> None:
    model = tiny_model(jax.devices("neuron")[:2])
    clients = Clients()
    requests = random_requests(6, 4, VOCABULARY)
    with Engine(model.runner(), LIMITS, clients.deliver) as engine:
        answers = ask(engine, clients, requests)
    greedy_tokens(model, requests, answers)


def test_what_cannot_be_taken_is_refused_and_the_rest_goes_on(runner) -> None:  # type: ignore[no-untyped-def]
    clients = Clients()
    with Engine(runner, LIMITS, clients.deliver, max_waiting=0) as engine:
        with pytest.raises(CrowdedError, match="0 requests of this client"):
            engine.submit(Request("a", [1], 1))
        with pytest.raises(RequestError, match="maximum context length is 48"):
            engine.submit(Request("b", [1] * 40, 9))
    with pytest.raises(OverloadedError, match="shutting down"):
        engine.submit(Request("c", [1], 1))


class BrokenRunner:
    """A device that dies."""

    def reset(self) -> None:
        pass

    def worth_guessing(self, sequence: object) -> bool:
        return False

    def run(self, step: object, slots: object) -> None:
        raise RuntimeError("device 3 is gone")


def test_a_device_that_dies_is_an_error_of_every_request() -> None:
    clients = Clients()
    engine = Engine(BrokenRunner(), LIMITS, clients.deliver)  # type: ignore[arg-type]
    engine.submit(Request("a", [1], 1))
    (answer,) = clients.wait(["a"])
    assert (answer.finished, answer.error) == ("error", "device 3 is gone")
    with pytest.raises(ServingError, match="device 3 is gone"):
        engine.submit(Request("b", [1], 1))
    engine.close()
