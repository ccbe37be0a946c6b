"""`echo` with `logprobs`: what the model says of a prompt, against NumPy."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from openai import OpenAI

from launch.serving.disaggregated import Disaggregated
from launch.serving.engine import Engine
from launch.serving.requests import Request, SamplingParameters
from tests.models import reference
from tests.serving.engines import GREEDY, LIMITS, Clients, Model, ask, tiny_model
from tests.serving.http_server import NAME, Running, byte_model

TEXT = "The quick brown fox jumps over the lazy dog, and then over another one. " * 2
ONE_BY_ONE = 1 + 32 * 3  # chunks of 32 tokens, and the last token alone
TOLERANCE = 6e-5  # twice that of logits in test_decoder: they are subtracted from their sum


@pytest.fixture(scope="module")
def model() -> Model:
    return byte_model()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def forward(model: Model, tokens: list[int]) -> np.ndarray:
    """FP64 [T, V]: logarithms of the probabilities after each token, by NumPy."""
    parameters = {name: np.asarray(leaf) for name, leaf in model.parameters.items()}
    logits = reference.decoder(np.array(tokens), parameters, model.config)
    top = logits.max(axis=-1, keepdims=True)
    values: np.ndarray = logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    return values


@pytest.mark.parametrize("length", [1, 2, ONE_BY_ONE])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("count", [0, 3])
def test_a_prompt_is_scored(
    client: OpenAI, model: Model, length: int, stream: bool, count: int
) -> None:
    """All at once or as a stream, with an answer and without; texts with the same beginning were
    there before."""
    text = TEXT[:length]
    settings = {"prompt": text, "max_tokens": count, "temperature": 0, "logprobs": 2}
    told = client.completions.create(model=NAME, echo=True, stream=stream, **settings)
    choices = [piece.choices[0] for piece in told] if stream else [told.choices[0]]
    written = "".join(choice.text for choice in choices)
    lists: dict[str, list[Any]] = {
        name: [value for choice in choices for value in getattr(choice.logprobs, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert written.startswith(text)
    assert choices[-1].finish_reason == "length"
    if not stream:
        usage = told.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (length, count)
        assert (written == text) == (count == 0)
    assert len(lists["tokens"]) == length + count
    assert "".join(lists["tokens"][:length]) == text
    assert lists["text_offset"][:length] == list(range(length))
    assert lists["token_logprobs"][0] is None
    assert lists["top_logprobs"][0] is None
    expected = forward(model, list(text.encode()))[:-1]
    after = list(text.encode())[1:]
    np.testing.assert_allclose(
        np.array(lists["token_logprobs"][1:length], float),
        expected[np.arange(length - 1), after],
        atol=TOLERANCE,
    )
    for place, entry in enumerate(lists["top_logprobs"][1:length]):
        likeliest = np.sort(expected[place])[::-1][:2]
        np.testing.assert_allclose(sorted(entry.values())[::-1][:2], likeliest, atol=TOLERANCE)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_scores_by_vllms_field(server: Running, model: Model, path: str) -> None:
    """With the rank of each token, also of one that is not among the likeliest."""
    is_chat = path.startswith("/v1/chat")
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" if is_chat else TEXT[:40]
    given = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": text}
    body = {**given, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 2}
    told = server.ask(path, body)[1]
    first, *entries = (told if is_chat else told["choices"][0])["prompt_logprobs"]
    tokens = list(text.encode())
    expected = forward(model, tokens)[:-1]
    assert first is None
    for entry, row, token in zip(entries, expected, tokens[1:], strict=True):
        order = np.argsort(-row)
        assert set(entry) == {str(number) for number in (*order[:2], token)}
        for number, value in entry.items():
            assert abs(value["logprob"] - row[int(number)]) < TOLERANCE
            assert value["rank"] == 1 + order.tolist().index(int(number))
        assert entry[str(token)]["decoded_token"] == chr(token)


def test_the_answer_is_what_it_is_without_scores(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": TEXT[:50], "max_tokens": 9, "temperature": 0, "logprobs": 1}
    plain = client.completions.create(**asked).choices[0]
    echoed = client.completions.create(**asked, echo=True, n=2).choices
    for choice in echoed:
        assert choice.text == TEXT[:50] + plain.text
        assert choice.logprobs.tokens[50:] == plain.logprobs.tokens
        np.testing.assert_allclose(
            choice.logprobs.token_logprobs[50:], plain.logprobs.token_logprobs, atol=TOLERANCE
        )


SMALL = replace(LIMITS, blocks=14)


@pytest.mark.parametrize(
    "kind", ["one engine", pytest.param("disaggregated", marks=pytest.mark.slow)]
)
def test_scores_outlast_preemption(kind: str) -> None:
    """Many long texts in a small cache lose their places, and are scored as each alone."""
    devices = jax.devices("neuron")
    first, second = tiny_model(devices[:1]), tiny_model(devices[1:2])
    rng = np.random.default_rng(0)
    vocabulary = first.config.vocab_size
    requests = [
        Request(
            str(n),
            rng.integers(0, vocabulary, 9 + n).tolist(),
            18,
            replace(GREEDY, logprobs=0) if n % 2 else SamplingParameters(seed=n, logprobs=0),
            prompt_logprobs=0,
        )
        for n in range(8)
    ]
    clients, scores = Clients(), {}

    def deliver(outputs: Any) -> None:
        for output in outputs:
            if output.prompt_logprobs:
                assert output.id not in scores
                scores[output.id] = output.prompt_logprobs
        clients.deliver(outputs)

    if kind == "disaggregated":
        with Disaggregated(first.runner(SMALL), second.runner(SMALL), SMALL, deliver) as both:
            ask(both, clients, requests)
            counters = both.load().counters
    else:
        with Engine(first.runner(SMALL), SMALL, deliver) as engine:
            ask(engine, clients, requests)
            counters = engine.load().counters
    assert counters.preemptions > 0
    for request in requests:
        told, *rest = scores[request.id]
        assert told is None
        prompt = list(request.prompt)
        expected = forward(first, prompt)[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose([entry.chosen for entry in rest], expected, atol=TOLERANCE)


@pytest.mark.slow
def test_what_scores_prompts_is_compiled_with_the_rest(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, clients = model.runner(), Clients()
    runner.warm_up(runner.programs.keys)
    left: list[Any] = []
    monkeypatch.setattr(runner.programs.compiled, "_compile", left.append)
    with Engine(runner, LIMITS, clients.deliver) as engine:
        ask(engine, clients, [Request("a", [1, 2, 3], 2, GREEDY, prompt_logprobs=0)])
    assert not left
