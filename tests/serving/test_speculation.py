"""Guessing tokens: whoever guesses, answers are those without guesses."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file
from scipy.stats import chisquare

from launch.serving.engine import Engine
from launch.serving.errors import ServingError
from launch.serving.requests import Request, SamplingParameters
from launch.serving.runner.runner import Runner
from launch.serving.speculation.config import read_speculative_config
from launch.serving.speculation.draft_model import DraftModel
from launch.serving.speculation.eagle import EagleProposer
from launch.serving.speculation.medusa import FILE, Heads, Medusa, guess, read_heads
from launch.serving.speculation.ngram import NgramProposer
from launch.serving.speculation.proposer import Proposer
from models.decoder.eagle import make_eagle, with_ends
from tests.models.test_decoder import run
from tests.serving.eagle_training import trained_eagle
from tests.serving.engines import GREEDY, LIMITS, Clients, Model, ask, random_requests, tiny_model
from tests.serving.test_engine import VOCABULARY, greedy_tokens

GUESSING = replace(LIMITS, guesses=3, buckets=replace(LIMITS.buckets, decode_rows=(8,)))


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model(jax.devices("neuron")[:1])


def ngram(model: Model) -> Proposer:
    return NgramProposer(GUESSING.guesses, 1, 3, texts=16)


def draft(model: Model) -> Proposer:
    """The model itself, a little changed."""
    parameters = dict(model.parameters)
    parameters["norm.scale"] = 0.9 * parameters["norm.scale"]
    name = "blocks.1.mlp.down.kernel"
    parameters[name] = 0.7 * parameters[name]
    return DraftModel(model.graph, parameters, model.mesh, GUESSING)


def medusa(model: Model) -> Proposer:
    """Heads that are the model's own: what follows next stands for what follows later."""
    table = model.parameters["embedding.table"]
    dim = table.shape[1]
    heads = Heads(jnp.zeros((3, 1, dim, dim)), jnp.zeros((3, 1, dim)), jnp.stack([table] * 3))
    return Medusa(heads, model.mesh, GUESSING)


def eagle(model: Model) -> Proposer:
    """A head that was trained for the model."""
    graph, _ = make_eagle(model.config, model.config)
    own = jax.device_put(trained_eagle(model), NamedSharding(model.mesh, PartitionSpec()))
    return EagleProposer(graph, with_ends(own, model.parameters), model.mesh, GUESSING)


PROPOSERS: dict[str, Callable[[Model], Proposer]] = {
    "ngram": ngram,
    "draft model": draft,
    "medusa": medusa,
    "eagle": eagle,
}


@pytest.fixture(scope="module")
def runners(model: Model) -> dict[str, Runner]:
    return {name: model.runner(GUESSING, make(model)) for name, make in PROPOSERS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPOSERS)
@settings(max_examples=2)
@given(seed=st.integers(0, 1000), blocks=st.integers(14, 40), ahead=st.integers(0, 2))
def test_no_guess_changes_a_greedy_answer(
    model: Model, runners: dict[str, Runner], name: str, seed: int, blocks: int, ahead: int
) -> None:
    requests = random_requests(10, seed, VOCABULARY)
    requests.append(Request("alike", [3, 1, 4] * 5, 12, GREEDY))
    clients = Clients()
    limits = replace(GUESSING, blocks=blocks)
    with Engine(runners[name], limits, clients.deliver, steps_ahead=ahead) as engine:
        answers = ask(engine, clients, requests)
        counters = engine.load().counters
    greedy_tokens(model, requests, answers)
    assert counters.draft_tokens >= counters.drafts > 0
    if name == "draft model":  # it follows what is accepted, or it would guess worse
        assert counters.accepted_tokens > 0.4 * counters.draft_tokens
    assert engine.load().blocks_held == 0


def test_a_trained_head_is_right_more_often_than_chance(runners: dict[str, Runner]) -> None:
    clients = Clients()
    with Engine(runners["eagle"], GUESSING, clients.deliver) as engine:
        ask(engine, clients, random_requests(40, 7, VOCABULARY))
        counters = engine.load().counters
    assert counters.accepted_tokens > 2.5 / VOCABULARY * counters.draft_tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft model", "eagle"])
def test_no_guess_changes_a_drawn_answer(runners: dict[str, Runner], name: str) -> None:
    """Also beside requests whose tokens are not guessed."""
    kinds = [
        SamplingParameters(),
        SamplingParameters(temperature=0.7, top_k=9, top_p=0.9),
        SamplingParameters(logit_bias={3: 2.0}, repetition_penalty=1.2),
        GREEDY,
    ]
    requests = [
        replace(each, sampling=replace(kinds[index % 4], seed=index))
        for index, each in enumerate(random_requests(12, 5, VOCABULARY))
    ]
    answers = []
    for guesses in (0, 3):
        clients = Clients()
        limits = replace(GUESSING, guesses=guesses)
        with Engine(runners[name], limits, clients.deliver) as engine:
            answers.append([each.tokens for each in ask(engine, clients, requests)])
    assert answers[0] == answers[1]
    assert engine.load().counters.drafts > 0


@pytest.mark.parametrize(("name", "accepted"), [("draft model", 100), ("eagle", 20)])
def test_drawn_tokens_have_the_distribution_of_the_model(
    model: Model, runners: dict[str, Runner], name: str, accepted: int
) -> None:
    """The second token of many answers to one prompt, which is a guess at first."""
    prompt = [5, 9, 2, 5, 9, 2, 5, 9]
    flat = SamplingParameters(temperature=2.0)
    requests = [Request(str(seed), prompt, 3, replace(flat, seed=seed)) for seed in range(300)]
    clients = Clients()
    with Engine(runners[name], GUESSING, clients.deliver) as engine:
        answers = ask(engine, clients, requests)
        assert engine.load().counters.accepted_tokens > accepted

    def after(texts: np.ndarray) -> np.ndarray:
        logits = np.asarray(run(model.graph, model.parameters, texts.astype(np.int32)))
        exact = np.exp(logits[:, -1].astype(np.float64) / flat.temperature)
        return exact / exact.sum(-1, keepdims=True)

    first = after(np.array([prompt]))[0]
    second = after(np.array([[*prompt, token] for token in range(VOCABULARY)]))
    expected = len(answers) * first @ second
    observed = np.bincount([answer.tokens[1] for answer in answers], minlength=VOCABULARY)
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert chisquare(observed, expected).pvalue > 1e-3


def test_heads_from_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.normal(size=shape).astype(np.float32)
        for i in range(2)
        for name, shape in (
            (f"{i}.0.linear.weight", (4, 4)),
            (f"{i}.0.linear.bias", (4,)),
            (f"{i}.1.weight", (7, 4)),
        )
    }
    save_file(tensors, tmp_path / FILE)
    heads = read_heads(tmp_path, 2, 4, 7, "float32")
    x = rng.normal(size=4).astype(np.float32)
    expected = []
    for i in range(2):
        hidden = tensors[f"{i}.0.linear.weight"] @ x + tensors[f"{i}.0.linear.bias"]
        expected.append(np.argmax(tensors[f"{i}.1.weight"] @ (x + hidden / (1 + np.exp(-hidden)))))
    assert guess(heads, jnp.asarray(x)[None], jnp.zeros(1, jnp.int32))[0].tolist() == expected
    with pytest.raises(ServingError, match="fewer heads than num_speculative_tokens=3"):
        read_heads(tmp_path, 3, 4, 7, "float32")
    with pytest.raises(ServingError, match="7 tokens of width 4, but the model has 9"):
        read_heads(tmp_path, 2, 4, 9, "float32")
    with pytest.raises(ServingError, match="no heads in"):
        read_heads(tmp_path / "none", 2, 4, 9, "float32")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "write an object"),
        ('{"method": "ngram"}', "with num_speculative_tokens"),
        ('{"num_speculative_tokens": "4"}', "num_speculative_tokens='4'"),
        ('{"num_speculative_tokens": 4}', "model is for draft_model, medusa, eagle, which need it"),
        ('{"num_speculative_tokens": 99, "method": "ngram"}', "must be 1 to 16"),
        ('{"num_speculative_tokens": 4, "method": "x"}', "'x' is unknown"),
    ],
)
def test_what_cannot_be_asked_for(text: str, message: str) -> None:
    with pytest.raises(ServingError, match=message):
        read_speculative_config(text)
