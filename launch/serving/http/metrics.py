"""Prometheus metrics by vLLM's names."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from launch.serving.answering import Load
from launch.serving.answers import Piece
from launch.serving.requests import Request
from launch.serving.scheduler.limits import SchedulerLimits

SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


class _EngineCollector:
    """What the engine counts itself."""

    def __init__(self, limits: SchedulerLimits, model: str) -> None:
        self.load: Load | None = None  # nothing to tell yet
        self._limits, self._labels = limits, [model]

    def collect(self) -> Iterable[Metric]:
        """Yields each of the engine's metrics, or none as long as there is no load."""
        load = self.load
        if load is None:
            return
        for name, text, value in _gauges(load):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, value in _counters(load):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            counter.add_metric(self._labels, value)
            yield counter
        yield self._accepted_by_position(load)
        yield self._cache()

    def _accepted_by_position(self, load: Load) -> Metric:
        counter = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Guesses that were right, by their position in the row's guesses.",
            labels=["model_name", "position"],
        )
        for position, accepted in enumerate(load.counters.accepted_by_position):
            counter.add_metric([*self._labels, str(position)], accepted)
        return counter

    def _cache(self) -> Metric:
        """What vLLM tells in labels, in its names."""
        limits = self._limits
        values = {
            "block_size": limits.block_size,
            "num_gpu_blocks": limits.blocks,
            "enable_prefix_caching": limits.prefix_caching,
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The cache of a copy of the model.",
            labels=["model_name", *values],
        )
        info.add_metric([*self._labels, *map(str, values.values())], 1.0)
        return info


class _Histogram:
    """A histogram for one thread: without the library's locks and labels it takes a tenth."""

    def __init__(self, name: str, text: str, model: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._model, self._bounds = name, text, model, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        """Yields the histogram with a sample of each bucket."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        family.add_metric([self._model], list(zip(bounds, counts, strict=True)), self._sum)
        yield family


def _gauges(load: Load) -> list[tuple[str, str, float]]:
    usage = load.blocks_held / load.blocks
    return [
        ("num_requests_running", "Sequences in the batch.", load.running),
        ("num_requests_waiting", "Sequences in the queue.", load.waiting),
        ("kv_cache_usage_perc", "Share of the cache in use, 0 to 1.", usage),
    ]


def _counters(load: Load) -> list[tuple[str, str, float]]:
    counters = load.counters
    return [
        ("num_preemptions", "Sequences that gave their blocks back.", counters.preemptions),
        ("prefix_cache_queries", "Prompt tokens looked up.", counters.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found in the cache.", counters.prefix_hits),
        ("prompt_tokens", "Tokens of prompts.", counters.prompt_tokens),
        ("generation_tokens", "Tokens of answers.", counters.generation_tokens),
        ("spec_decode_num_drafts", "Rows with guesses.", counters.drafts),
        ("spec_decode_num_draft_tokens", "Tokens guessed.", counters.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Guesses that were right.", counters.accepted_tokens),
    ]


class Metrics:
    """Everything `/metrics` tells of one model, in a registry of its own."""

    def __init__(self, limits: SchedulerLimits, model: str) -> None:
        self.registry, self._engine = CollectorRegistry(), _EngineCollector(limits, model)
        self.registry.register(self._engine)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> _Histogram:
            made = _Histogram(f"vllm:{name}", text, model, bounds)
            self.registry.register(made)
            return made

        self.first_token = histogram("time_to_first_token_seconds", "Until a token.", SECONDS)
        self.between_tokens = histogram("inter_token_latency_seconds", "Between tokens.", SECONDS)
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "Mean after the first.", SECONDS
        )
        self.whole = histogram("e2e_request_latency_seconds", "Until the end.", SECONDS)
        self.queued = histogram("request_queue_time_seconds", "Until the first step.", SECONDS)
        self.prefill = histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", SECONDS
        )
        self.decoding = histogram("request_decode_time_seconds", "After the first token.", SECONDS)
        self.inference = histogram(
            "request_inference_time_seconds", "From the first step to the end.", SECONDS
        )
        self.most_tokens = histogram("request_params_max_tokens", "Asked for at most.", _TOKENS)
        self.prompt_tokens = histogram("request_prompt_tokens", "Of each request.", _TOKENS)
        self.answer_tokens = histogram("request_generation_tokens", "Of each request.", _TOKENS)
        done = Counter(
            "vllm:request_success",
            "Requests that ended, by the reason.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.finished = {reason: done.labels(model, text) for reason, text in _REASONS.items()}

    def begin(self, request: Request) -> "Timer":
        """The clock of a request starts."""
        self.prompt_tokens.observe(request.tokens_read)
        self.most_tokens.observe(request.max_tokens)
        return Timer(self)

    def text(self, load: Load) -> bytes:
        """The page of `/metrics`."""
        self._engine.load = load
        return generate_latest(self.registry)


@dataclass
class Timer:
    """The times of one request."""

    metrics: Metrics
    began: float = field(default_factory=time.perf_counter)
    waited: float = 0.0  # until the first step
    last: float | None = None
    first: float | None = None
    tokens: int = 0
    finished: str | None = None

    def piece(self, piece: Piece) -> None:
        """A piece has come. The time since the one before is shared among its tokens."""
        self.finished = piece.finished
        if piece.finished == "error":
            return
        first = now = time.perf_counter()
        if piece.times is not None:
            self.began, first, now = piece.times
        count = len(piece.tokens)
        if self.last is None:
            self.first, self.waited = first, piece.waited or 0.0
            self.metrics.first_token.observe(first - self.began)
            self.metrics.queued.observe(self.waited)
            self.metrics.prefill.observe(first - self.began - self.waited)
            others = max(count - 1, 0)
            self.metrics.between_tokens.observe((now - first) / max(others, 1), others)
        elif count:
            self.metrics.between_tokens.observe((now - self.last) / count, count)
        self.last = now
        self.tokens += count

    def close(self) -> None:
        """Counts the answer, when nothing more comes of it."""
        self.metrics.finished[self.finished or "cancelled"].inc()
        self.metrics.answer_tokens.observe(self.tokens)
        if self.last is None or self.first is None:
            return
        self.metrics.whole.observe(self.last - self.began)
        self.metrics.decoding.observe(self.last - self.first)
        self.metrics.inference.observe(self.last - self.began - self.waited)
        if self.tokens > 1:
            self.metrics.per_token.observe((self.last - self.first) / (self.tokens - 1))
