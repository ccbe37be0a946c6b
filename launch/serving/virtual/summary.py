"""What clients saw of one run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """The outcome of one run. Times in seconds of the device; triples are p50, p90 and p99."""

    rate: float  # requests per second that came
    requests: int
    duration: float
    ttft: tuple[float, ...]  # to the first token
    tpot: tuple[float, ...]  # per token after the first, mean of each request
    itl: tuple[float, ...]  # between tokens
    e2e: tuple[float, ...]  # to the last token
    requests_per_second: float
    tokens_per_second: float  # of answers
    within_slo: float  # share of requests
    goodput: float  # requests per second within the objective
    busy: float  # share of the time in which the device ran
    steps: int
    preemptions: int
    prefix_hit_share: float  # of prompt tokens
    usd_per_million_tokens: float | None
