"""Tokens drawn on the device against distributions computed with NumPy in FP64."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import chisquare

from launch.serving.errors import RequestError
from launch.serving.requests import MOST_LOGPROBS, Request, SamplingParameters
from launch.serving.sampling.draw import Settings, draw
from launch.serving.sampling.slot_settings import SlotSettings, biases
from launch.serving.sampling.state import SamplerState, enter
from launch.serving.sampling.suppressed import NONE_SUPPRESSED
from launch.serving.sampling.variants import VARIANTS, variant_of

V, ROWS = 24, 512
PROGRAMS = {variant.name: jax.jit(partial(draw, variant, NONE_SUPPRESSED)) for variant in VARIANTS}
ENTER = jax.jit(enter)
TEXT, PROMPT = [1, 2, 2, 3, 3, 3, 4], 3  # the answer so far is 3, 3, 3, 4
LOGITS = np.random.default_rng(0).normal(size=V).astype(np.float32) * 2
LOGITS[:6] = [4.0, 3.5, -1.0, 3.0, 2.5, -2.0]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.6},
    "top_k and top_p": {"top_k": 5, "top_p": 0.7, "temperature": 1.5},
    "min_p": {"min_p": 0.2},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.8},
    "bias": {"logit_bias": {0: -100.0, 7: 5.0}},
    "all": {
        "temperature": 1.2,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.01,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.2,
        "repetition_penalty": 0.9,
        "logit_bias": {8: 1.0},
    },
}


def distribution(sampling: SamplingParameters, allowed: np.ndarray) -> np.ndarray:
    """The definition, token by token."""
    logits = LOGITS.astype(np.float64)
    for token, value in sampling.logit_bias.items():
        logits[token] += value
    for token in set(TEXT):
        factor = sampling.repetition_penalty
        logits[token] *= 1 / factor if logits[token] > 0 else factor
    for token in set(TEXT[PROMPT:]):
        logits[token] -= sampling.frequency_penalty * TEXT[PROMPT:].count(token)
        logits[token] -= sampling.presence_penalty
    logits[~allowed] = -np.inf
    logits /= sampling.temperature
    order = np.argsort(-logits)
    kept = set(order[: sampling.top_k or V].tolist())
    probabilities = softmax([logits[t] if t in kept else -np.inf for t in range(V)])
    before = 0.0
    for token in order.tolist():
        if before >= sampling.top_p:
            kept.discard(token)
        before += probabilities[token]
    probabilities = softmax(logits)
    kept &= set(np.flatnonzero(probabilities >= sampling.min_p * probabilities.max()).tolist())
    return softmax([logits[t] if t in kept else -np.inf for t in range(V)])


def drawn(sampling: SamplingParameters, mask: np.ndarray | None = None):  # type: ignore[no-untyped-def]
    """ROWS draws with as many seeds, all as slot 0 would have them."""
    request = Request("a", TEXT[:PROMPT], 10, sampling)
    variant = VARIANTS[3] if mask is not None else VARIANTS[variant_of(request)]
    settings = SlotSettings(1)
    settings.enter(0, 1, request)
    text = np.array(TEXT, np.int32)
    place = np.array([0, PROMPT, len(TEXT)], np.int32)
    state = ENTER(SamplerState.empty(1, V), place, text, *biases(request))
    rows = settings.rows(np.zeros(ROWS, np.int64), np.zeros(ROWS))
    seeds = np.stack([np.zeros(ROWS), np.arange(ROWS)], axis=1).astype(np.uint32)
    rows = Settings(*rows._replace(seeds=seeds))  # type: ignore[arg-type]
    words = None if mask is None else np.tile(mask, (ROWS, 1))
    logits = np.tile(LOGITS, (ROWS, 1))
    return PROGRAMS[variant.name](logits, state, rows, words)[0]


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_draws_follow_the_distribution(changes: dict[str, Any]) -> None:
    sampling = SamplingParameters(**changes)
    expected = distribution(sampling, np.ones(V, bool))
    counts = np.bincount(drawn(sampling).tokens, minlength=V)
    assert counts[expected == 0].sum() == 0
    common = expected * ROWS >= 5
    rest = [(~common & (expected > 0)).any()]
    seen = [*counts[common], *([counts[~common].sum()] if rest[0] else [])]
    wanted = [*(expected[common] * ROWS), *([expected[~common].sum() * ROWS] if rest[0] else [])]
    # The seeds are fixed: the test cannot fail by chance.
    assert len(seen) == 1 or chisquare(seen, wanted).pvalue > 1e-3


def test_a_mask_forbids_tokens() -> None:
    allowed = np.zeros(V, bool)
    allowed[[2, 5, 23]] = True
    mask = np.zeros(1, np.uint32)
    for token in np.flatnonzero(allowed):
        mask[0] |= np.uint32(1 << int(token))
    sampling = SamplingParameters()
    counts = np.bincount(drawn(sampling, mask).tokens, minlength=V)
    assert set(np.flatnonzero(counts)) <= {2, 5, 23}
    assert chisquare(counts[allowed], ROWS * distribution(sampling, allowed)[allowed]).pvalue > 1e-3


def test_greedy_takes_the_likeliest_and_tells_logprobs() -> None:
    sampling = SamplingParameters(temperature=0, logprobs=5, logit_bias={1: 9.0})
    result = drawn(sampling)
    assert set(np.asarray(result.tokens).tolist()) == {1}
    expected = log_softmax(LOGITS.astype(np.float64))  # before biases
    np.testing.assert_allclose(result.logprobs, expected[1], rtol=1e-5)
    order = np.argsort(-expected)[:MOST_LOGPROBS]
    np.testing.assert_array_equal(result.top_tokens[0], order)
    np.testing.assert_allclose(result.top_logprobs[0], expected[order], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias"),
    ],
)
def test_what_is_out_of_range(changes: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParameters(**changes)
    assert caught.value.parameter == parameter
