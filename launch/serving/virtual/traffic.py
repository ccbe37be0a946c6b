"""Requests over time: drawn from distributions, or read from a trace."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from launch.serving.cache.prefixes import ROOT, Key, adapter_root
from launch.serving.errors import ServingError
from launch.settings import check_settings, setting


class Arrival(NamedTuple):
    """A request of a trace."""

    seconds: float  # since the start
    prompt: bytes  # tokens: what they are does not matter, only which texts begin alike
    max_tokens: int  # of the answer: it ends there
    adapter: int = 0  # its number; 0 = none

    @property
    def root(self) -> Key:
        """What the keys of its text begin with."""
        return adapter_root(self.adapter) if self.adapter else ROOT


class Lengths(NamedTuple):
    """Log-normal lengths in tokens."""

    prompt_mean: float
    answer_mean: float
    sigma: float  # of the logarithm


# Means: Kwon et al., "PagedAttention", 2023, section 6.1. They say that both vary more in ShareGPT;
# the spread is a choice of this table, of the order of the histograms there.
LENGTHS: Mapping[str, Lengths] = {
    "sharegpt": Lengths(161.31, 337.99, 1.1),
    "alpaca": Lengths(19.31, 58.45, 0.6),
}


@dataclass(frozen=True, kw_only=True)
class TrafficConfig:
    """What clients ask for."""

    num_requests: int = setting(1000, "Requests per run.", lowest=1)
    arrivals: str = setting(
        "poisson", "poisson, or bursts: groups of requests at once.", choices=("poisson", "bursts")
    )
    burst_size: int = setting(16, "Requests per burst, on average.", lowest=1)
    lengths: str = setting(
        "sharegpt", "sharegpt, alpaca, or tokens of prompt and answer such as 512:128."
    )
    shared_prefix: int = setting(0, "Tokens that all prompts begin with.", lowest=0)
    num_adapters: int = setting(
        0, "Adapters that requests ask for, one as often as the other; 0 = none.", lowest=0
    )
    acceptance_rate: float | None = setting(
        None,
        "With --speculative_config: the probability that a guessed token is right if all before it "
        "are.",
        lowest=0,
    )
    seed: int = setting(0, "Seed of the traffic.", lowest=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.acceptance_rate is not None and self.acceptance_rate > 1:
            raise ServingError(f"--acceptance_rate={self.acceptance_rate} must be at most 1")


def draw_traffic(config: TrafficConfig, rate: float, longest: int) -> list[Arrival]:
    """Requests at `rate` per second on average; texts are cut to `longest` tokens.

    The same requests come at every rate, closer together. Raises ServingError for lengths that
    are none.
    """
    rng = np.random.default_rng(config.seed)
    count = config.num_requests
    seconds = ARRIVALS[config.arrivals](rng, count, config.burst_size) / rate
    prompts, answers = _lengths(config.lengths, rng, count)
    prompts = np.clip(prompts + config.shared_prefix, 1, longest - 1)
    answers = np.clip(answers, 1, longest - prompts)
    prefix = rng.bytes(config.shared_prefix)
    texts = [prefix[:n] + rng.bytes(max(n - len(prefix), 0)) for n in prompts.tolist()]
    most = config.num_adapters
    adapters = rng.integers(min(most, 1), most + 1, count)
    return list(map(Arrival, seconds.tolist(), texts, answers.tolist(), adapters.tolist()))


def read_trace(file: Path, longest: int) -> list[Arrival]:
    """The requests of a JSONL file with `seconds`, `prompt_tokens`, `answer_tokens` and, if one is
    asked for, the number of an `adapter` per line.

    Raises ServingError for other lines.
    """
    rng = np.random.default_rng(0)
    arrivals = []
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise ServingError(f"the trace {file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            seconds = float(values["seconds"])
            prompt, answer = int(values["prompt_tokens"]), int(values["answer_tokens"])
            adapter = int(values.get("adapter", 0))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ServingError(
                f"{file}:{number} is not a request: {line[:60]!r} needs seconds, prompt_tokens and "
                "answer_tokens"
            ) from error
        if not (seconds >= 0 and prompt > 0 and answer > 0 and prompt + answer <= longest):
            raise ServingError(
                f"{file}:{number}: {prompt} + {answer} tokens after {seconds} s; tokens must be "
                f"positive and at most {longest} together"
            )
        if adapter < 0:
            raise ServingError(
                f"{file}:{number}: adapter={adapter}; adapters count from 1, 0 = none"
            )
        arrivals.append(Arrival(seconds, rng.bytes(prompt), answer, adapter))
    return sorted(arrivals)


def _poisson(rng: np.random.Generator, count: int, burst_size: int) -> np.ndarray:
    return np.cumsum(rng.exponential(1.0, count))


def _bursts(rng: np.random.Generator, count: int, burst_size: int) -> np.ndarray:
    sizes = rng.geometric(1 / burst_size, count)
    when = np.cumsum(rng.exponential(burst_size, count))
    return np.repeat(when, sizes)[:count]


ARRIVALS: Mapping[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "poisson": _poisson,
    "bursts": _bursts,
}


def _lengths(text: str, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    if text in LENGTHS:
        known = LENGTHS[text]
        return (
            _log_normal(rng, known.prompt_mean, known.sigma, count),
            _log_normal(rng, known.answer_mean, known.sigma, count),
        )
    prompt, _, answer = text.partition(":")
    if not (prompt.isdecimal() and answer.isdecimal() and int(prompt) and int(answer)):
        raise ServingError(
            f"--lengths={text} is not known: write {', '.join(LENGTHS)}, or tokens such as 512:128"
        )
    return np.full(count, int(prompt)), np.full(count, int(answer))


def _log_normal(rng: np.random.Generator, mean: float, sigma: float, count: int) -> np.ndarray:
    values = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
    return np.maximum(values.round().astype(np.int64), 1)
