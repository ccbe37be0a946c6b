"""Prometheus metrics, by vLLM's names, of what is computed in groups."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from launch.serving.batcher import Load
from launch.serving.http.metrics import SECONDS


class _LoadCollector:
    """What the batcher counts itself."""

    def __init__(self, model: str) -> None:
        self.load = Load(0, 0, 0, 0)
        self._labels = [model]

    def collect(self) -> Iterable[Metric]:
        """Yields a gauge for each number of the batcher's load."""
        load = self.load
        for name, text, value in (
            ("num_requests_running", "Inputs in the batch.", load.running),
            ("num_requests_waiting", "Inputs in the queue.", load.waiting),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            gauge.add_metric(self._labels, value)
            yield gauge


class BatchMetrics:
    """Everything `/metrics` tells of one model, in a registry of its own."""

    def __init__(self, model: str) -> None:
        self._registry, self._batcher = CollectorRegistry(), _LoadCollector(model)
        self._registry.register(self._batcher)
        names, registry = ["model_name"], self._registry
        seconds = Histogram(
            "vllm:e2e_request_latency_seconds",
            "Until the end.",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        tokens = Counter("vllm:prompt_tokens", "Tokens of inputs.", names, registry=registry)
        done = Counter(
            "vllm:request_success",
            "Requests that ended, by the reason.",
            [*names, "finished_reason"],
            registry=registry,
        )
        self._seconds, self._tokens = seconds.labels(model), tokens.labels(model)
        self._stopped, self._aborted = done.labels(model, "stop"), done.labels(model, "abort")

    @contextmanager
    def measured(self, tokens: int = 0) -> Iterator[None]:
        """Measures the request that is answered meanwhile."""
        began = time.perf_counter()
        self._tokens.inc(tokens)
        try:
            yield
        except BaseException:
            self._aborted.inc()
            raise
        self._stopped.inc()
        self._seconds.observe(time.perf_counter() - began)

    def text(self, load: Load) -> bytes:
        """The page of `/metrics`."""
        self._batcher.load = load
        return generate_latest(self._registry)
