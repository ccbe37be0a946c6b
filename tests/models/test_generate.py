"""Generation against the plain forward pass, and the sampling rules against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from models.generate import CHUNK, generate
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
        Sampling(top_p=1e-6),
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
    return cut / cut.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 is negative"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1 is negative"),
        ({"top_p": 0.0}, r"top_p=0.0 is not in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1.5 is not in \(0, 1\]"),
    ],
)
def test_bad_sampling_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**change)  # type: ignore[arg-type]


def test_empty_prompt_is_refused() -> None:
    _, graph, parameters = build()
    with pytest.raises(ValueError, match="prompt is empty"):
        generate(
            graph,
            parameters,
            np.zeros((1, 0), np.int32),
            max_new_tokens=1,
            context=16,
            sampling=GREEDY,
            key=jnp.zeros(2),
        )
