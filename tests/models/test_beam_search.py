"""Beam search and the rules for new tokens, against their definitions."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from models.beam_search import Beams
from models.constraints import Constraints, Ending, Number, Text, constrained
from models.errors import GenerationError
from models.generate import generate
from models.sampling import Sampling
from tests.models.test_decoder import build, run
from tests.quick_compile import QUICK_COMPILE

VOCAB = 32
PROMPT = np.random.default_rng(0).integers(0, VOCAB, (2, 6)).astype(np.int32)


def make(**options: Any) -> np.ndarray:
    _, graph, parameters = build(initializer_range=0.5)
    settings: dict[str, Any] = {
        "max_new_tokens": 2,
        "context": 64,
        "sampling": Sampling(temperature=0),
        "key": jax.random.key(0),
    }
    return generate(graph, parameters, PROMPT, **(settings | options))


def test_as_many_beams_as_tokens_find_the_likeliest_pairs() -> None:
    _, graph, parameters = build(initializer_range=0.5)
    texts = np.array(list(product(range(VOCAB), repeat=2)), np.int32)
    best = []
    for prompt in PROMPT:
        whole = np.concatenate([np.tile(prompt, (len(texts), 1)), texts[:, :1]], axis=1)
        logits = np.asarray(run(graph, parameters, whole), np.float64)
        likely = log_softmax(logits, axis=-1)
        rows = np.arange(len(texts))
        scores = likely[rows, -2, texts[:, 0]] + likely[rows, -1, texts[:, 1]]
        best.append(texts[np.argsort(-scores)[:3]])
    got = make(beams=Beams(VOCAB), sequences=3)
    np.testing.assert_array_equal(got, np.concatenate(best))


def test_sequences_are_draws_beside_each_other() -> None:
    got = make(sequences=3, max_new_tokens=8, sampling=Sampling(temperature=4.0))
    assert got.shape == (6, 8)
    assert len({tuple(row) for row in got}) == 6
    greedy = make(max_new_tokens=8)
    nearly = make(sequences=3, max_new_tokens=8, sampling=Sampling(temperature=1e-6))
    np.testing.assert_array_equal(nearly, np.repeat(greedy, 3, axis=0))


def ruled(rules: Constraints, texts: list[list[int]], made: int = 5, most: int = 9) -> np.ndarray:
    """What the rules make of logits 2, -2, 2, -2, … [B, 8] after these texts."""
    longest = max(map(len, texts))
    slots = np.zeros((len(texts), longest + 4), np.int32)
    begins = [longest - len(text) for text in texts]
    for row, begin, tokens in zip(slots, begins, texts, strict=True):
        row[begin:longest] = tokens
    logits = np.tile(np.array([2.0, -2.0], np.float32), (len(texts), 4))
    text = Text(jnp.array(slots), jnp.array(begins), longest)
    apply = jax.jit(constrained, static_argnums=(1, 4), compiler_options=QUICK_COMPILE)
    return np.asarray(apply(logits, rules, text, Number(made, most), Ending((3, 5))))


def test_repetitions_cost_whatever_the_sign() -> None:
    got = ruled(Constraints(repetition_penalty=4.0), [[1, 2, 2], [7]])
    np.testing.assert_array_equal(got[0], [2, -8, 0.5, -2, 2, -2, 2, -2])
    np.testing.assert_array_equal(got[1], [2, -2, 2, -2, 2, -2, 2, -8])


def test_new_tokens_cost_as_openai_says() -> None:
    """Of five tokens the last three were made: 2 twice and 4."""
    rules = Constraints(presence_penalty=0.5, frequency_penalty=0.25)
    got = ruled(rules, [[1, 7, 2, 4, 2]], made=3)
    np.testing.assert_array_equal(got[0], [2, -2, 1, -2, 1.25, -2, 2, -2])


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_so_many_tokens_in_a_row_stand_once(length: int) -> None:
    texts = [[1, 3, 2, 2, 1, 2, 1, 2, 1], [4], [6, 6, 6], [2, 1]]
    got = ruled(Constraints(no_repeat_ngram=length), texts)
    for row, text in zip(got, texts, strict=True):
        rows = [text[i : i + length] for i in range(len(text) - length + 1)]
        suffix = text[len(text) - length + 1 :]
        expected = {tokens[-1] for tokens in rows if tokens[:-1] == suffix}
        assert set(np.flatnonzero(np.isneginf(row))) == expected


def test_first_last_and_early_tokens() -> None:
    rules = Constraints(min_new_tokens=4, forced_first=6, forced_last=(5,), first_suppressed=(1,))
    possible = [
        set(np.flatnonzero(np.isfinite(ruled(rules, [[0]], made, 9)[0]))) for made in range(9)
    ]
    assert possible == [{6}, *[set(range(8)) - {3, 5}] * 3, *[set(range(8))] * 4, {5}]


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: Beams(0), "at least 1 beam, but num_beams=0"),
        (lambda: Beams(2, early_stopping="soon"), "early_stopping='soon' is not supported"),
        (lambda: Constraints(repetition_penalty=0), "repetition_penalty=0 is not positive"),
        (lambda: Constraints(no_repeat_ngram=-1), "no_repeat_ngram=-1 is negative"),
        (lambda: make(sequences=2), "would be identical"),
        (lambda: make(beams=Beams(2), sequences=3), "2 beams cannot return 3"),
        (lambda: make(beams=Beams(2), sampling=Sampling()), "does not sample"),
        (lambda: make(beams=Beams(2), boundaries=(7,)), "decoding continues past 7 tokens"),
    ],
    ids=["beams", "early", "penalty", "ngram", "greedy", "sequences", "draws", "boundary"],
)
def test_what_cannot_be_is_refused(make_it: Any, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        make_it()
