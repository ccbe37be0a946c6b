"""Generation against the plain forward pass, and the sampling rules against NumPy."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax

from models.constraints import Constraints, Ending
from models.errors import GenerationError
from models.generate import generate
from models.layers.rotary import Rotary
from models.parameters import merge
from models.prompts import CHUNK
from models.sampling import Sampling, sample
from tests.models.test_decoder import build, run

GREEDY = Sampling(temperature=0.0)


def greedy_by_forward_passes(tokens: np.ndarray, count: int, context: int) -> np.ndarray:
    """The definition: the whole text so far goes through the model for every new token."""
    _, graph, parameters = build()
    new = []
    for _ in range(count):
        padded = np.pad(tokens, ((0, 0), (0, context - tokens.shape[1])))
        logits = run(graph, parameters, padded)[:, tokens.shape[1] - 1]
        new.append(np.argmax(logits, axis=-1))
        tokens = np.concatenate([tokens, new[-1][:, None].astype(np.int32)], axis=1)
    return np.stack(new, axis=1)


@pytest.mark.parametrize("token", [-1, 32])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    _, graph, parameters = build()
    with pytest.raises(
        GenerationError, match=f"has the token ID {token}, .* vocabulary has only 32"
    ):
        generate(
            graph,
            parameters,
            np.array([[3, token, 5]]),
            max_new_tokens=1,
            context=40,
            sampling=GREEDY,
            key=jax.random.key(0),
        )


@pytest.mark.parametrize("prompt_length", [1, 17])
def test_greedy_is_the_argmax_of_forward_passes(
    devices: list[jax.Device], prompt_length: int
) -> None:
    _, graph, parameters = build()
    prompt = np.random.default_rng(5).integers(0, 32, (2, prompt_length)).astype(np.int32)
    count = 40 - prompt_length  # up to the last position of the context
    pieces: list[np.ndarray] = []
    got = generate(
        graph,
        jax.device_put(parameters, devices[0]),
        prompt,
        max_new_tokens=count,
        context=40,
        sampling=GREEDY,
        key=jax.random.key(0),
        on_tokens=pieces.append,
    )
    np.testing.assert_array_equal(got, greedy_by_forward_passes(prompt, count, 40))
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), got)
    assert all(piece.shape[1] <= CHUNK for piece in pieces)


def test_a_long_text_is_compiled_for_once(
    devices: list[jax.Device], caplog: pytest.LogCaptureFixture
) -> None:
    _, graph, parameters = build()
    with jax.log_compiles():
        generate(
            graph,
            jax.device_put(parameters, devices[0]),
            np.array([[3, 5]]),
            max_new_tokens=2 * CHUNK,
            context=40,
            sampling=Sampling(temperature=0.0, top_k=31),  # as in no other test
            constraints=Constraints(repetition_penalty=1.5),
            key=jax.random.key(0),
        )
    assert caplog.text.count("Compiling jit(_decode)") == 1


def test_a_full_context_starts_again_from_its_second_half() -> None:
    _, graph, parameters = build()
    prompt = np.random.default_rng(6).integers(0, 32, (1, 4)).astype(np.int32)

    def more(prompt: np.ndarray, count: int) -> np.ndarray:
        return generate(
            graph,
            parameters,
            prompt,
            max_new_tokens=count,
            context=24,
            sampling=GREEDY,
            key=jax.random.key(0),
            restart=True,
        )

    whole = np.concatenate([prompt, more(prompt, 32)], axis=1)
    np.testing.assert_array_equal(whole[:, 24:36], more(whole[:, 12:24], 12))


def test_draws_follow_the_key_alone() -> None:
    _, graph, parameters = build(initializer_range=0.1)

    def draw(seed: int, count: int) -> np.ndarray:
        return generate(
            graph,
            parameters,
            np.array([[1]], np.int32),
            max_new_tokens=count,
            context=64,
            sampling=Sampling(),
            key=jax.random.key(seed),
        )

    np.testing.assert_array_equal(draw(0, 40)[:, :21], draw(0, 21))
    assert not np.array_equal(draw(0, 40), draw(1, 40))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(top_k=3),
        Sampling(top_p=0.7),
        Sampling(temperature=2.0, top_k=5, top_p=0.6),
        Sampling(top_k=100),
        Sampling(temperature=2.0, top_p=0.9, min_p=0.3),
    ],
    ids=str,
)
def test_frequencies_are_the_truncated_softmax(
    devices: list[jax.Device], sampling: Sampling
) -> None:
    logits = np.array([0.1, 2.0, -1.0, 1.5, 0.0, 1.0, -3.0, 0.5], np.float32)
    expected = truncated_softmax(logits.astype(np.float64), sampling)
    count = 20_000
    tokens = jax.jit(sample, static_argnums=2)(
        *jax.device_put((np.tile(logits, (count, 1)), jax.random.key(7)), devices[0]), sampling
    )
    frequencies = np.bincount(tokens, minlength=8) / count
    assert (frequencies[expected == 0] == 0).all()
    # Five standard deviations of a binomial frequency.
    np.testing.assert_array_less(
        np.abs(frequencies - expected), 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9
    )


def truncated_softmax(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    order = np.argsort(-logits)
    probabilities = softmax(logits / sampling.temperature)
    if sampling.top_k:
        probabilities[order[sampling.top_k :]] = 0
        probabilities /= probabilities.sum()
    kept, total = [], 0.0
    for token in order:
        if total < sampling.top_p:
            kept.append(token)
        total += probabilities[token]
    cut = np.zeros_like(probabilities)
    cut[kept] = probabilities[kept]
    cut[cut < sampling.min_p * cut.max()] = 0
    return cut / cut.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 is not a number from 0 upwards"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1 is negative"),
        ({"top_p": 0.0}, r"top_p=0.0 is not in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1.5 is not in \(0, 1\]"),
        ({"min_p": 1.5}, r"min_p=1.5 is not in \[0, 1\]"),
    ],
)
def test_bad_sampling_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        Sampling(**change)  # type: ignore[arg-type]


def test_rows_of_unequal_length_are_what_each_is_alone() -> None:
    _, graph, parameters = build()
    rng = np.random.default_rng(8)
    texts = [rng.integers(1, 32, length).astype(np.int32) for length in (3, 9, 7)]
    alone = [greedy(graph, parameters, text[None])[0] for text in texts]
    for side in ("left", "right"):
        pads = [9 - len(text) for text in texts]
        edges = [(pad, 0) if side == "left" else (0, pad) for pad in pads]
        prompt = np.stack([np.pad(t, e) for t, e in zip(texts, edges, strict=True)])
        real = np.stack([np.pad(t > 0, e) for t, e in zip(texts, edges, strict=True)])
        np.testing.assert_array_equal(greedy(graph, parameters, prompt, real=real), alone)


def greedy(graph: Any, parameters: Any, prompt: np.ndarray, **options: Any) -> np.ndarray:
    settings = {"max_new_tokens": 20, "context": 64, "sampling": GREEDY, "key": jax.random.key(0)}
    return generate(graph, parameters, prompt, **(settings | options))


def test_rows_end_after_a_stop_token_and_the_rest_is_padding() -> None:
    _, graph, parameters = build(initializer_range=0.1)
    prompt = np.random.default_rng(9).integers(0, 32, (6, 5)).astype(np.int32)
    draws = {"sampling": Sampling(temperature=3.0), "key": jax.random.key(1)}
    free = greedy(graph, parameters, prompt, max_new_tokens=40, **draws)
    stops = (3, 7)
    pieces: list[np.ndarray] = []
    got = greedy(
        graph,
        parameters,
        prompt,
        max_new_tokens=40,
        ending=Ending(stops, pad_token=31),
        on_tokens=pieces.append,
        **draws,
    )
    ends = [next((i for i, token in enumerate(row) if token in stops), 39) for row in free]
    assert len(set(ends)) > 2
    assert got.shape == (6, max(ends) + 1)
    for row, expected, end in zip(got, free, ends, strict=True):
        np.testing.assert_array_equal(row[: end + 1], expected[: end + 1])
        assert (row[end + 1 :] == 31).all()
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), got)


@pytest.mark.parametrize("boundary", [6, 11])
def test_the_cache_is_filled_anew_beyond_a_boundary(boundary: int) -> None:
    """LongRoPE turns every key otherwise once the text is longer: as if there were no cache."""
    rotary = Rotary(
        kind="longrope",
        original_length=boundary,
        short_factors=(1.0, 1.5, 2.0, 2.5),
        long_factors=(4.0, 6.0, 9.0, 20.0),
    )
    config, graph, parameters = build(rotary=rotary, max_seq_len=64)
    assert config.boundaries == (boundary,)
    prompt = np.random.default_rng(10).integers(0, 32, (2, 8)).astype(np.int32)
    got = greedy(graph, parameters, prompt, boundaries=config.boundaries)
    text = np.concatenate([prompt, got], axis=1)

    @jax.jit
    def after(parameters: Any, text: jax.Array, pad: jax.Array) -> jax.Array:
        return merge(graph, parameters)(text, pad=pad)[:, -1]

    for length in range(8, text.shape[1]):
        pad = text.shape[1] - length  # padded at the beginning, so that one shape is compiled
        padded = np.pad(text[:, :length], ((0, 0), (pad, 0)))
        expected = np.argmax(after(parameters, padded, np.full(2, pad)), axis=-1)
        np.testing.assert_array_equal(text[:, length], expected)


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (0, {}, "the prompt is empty"),
        (4, {"real": np.zeros((1, 4), bool)}, "the prompt is empty"),
        (4, {"context": 1}, "context=1 is too short"),
        (17, {"context": 16, "restart": True}, "has 17 tokens, but the model's context is 16"),
        (10, {"context": 16, "max_new_tokens": 7}, "Ask for at most 6 new tokens"),
    ],
)
def test_prompts_that_do_not_suit_are_refused(
    length: int, options: dict[str, Any], message: str
) -> None:
    _, graph, parameters = build()
    with pytest.raises(GenerationError, match=message):
        greedy(graph, parameters, np.ones((1, length), np.int32), **options)
