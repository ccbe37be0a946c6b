"""Counters in Prometheus' format: the metrics of neuron-monitor-prometheus.py that apply to an
emulated device. Needs prometheus-client (extra ``monitor``)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from neuronjax.errors import MonitorError
from neuronjax.profiling.counters import MEMORY, CoreCounters, Facts, Snapshot, percentiles


def exposition(now: Snapshot, facts: Facts) -> tuple[str, bytes]:
    """Content type and body. MonitorError: prometheus-client is not installed."""
    try:
        client = importlib.import_module("prometheus_client")
        metrics = importlib.import_module("prometheus_client.metrics_core")
    except ImportError:
        raise MonitorError(
            "metrics for Prometheus need prometheus-client, which is not installed: pip install "
            "'neuronjax[monitor]'."
        ) from None
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_families(metrics, now, facts))))
    return client.CONTENT_TYPE_LATEST, client.generate_latest(registry)


class _Collected:
    """Metric families as a collector of prometheus-client."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def _families(metrics: Any, now: Snapshot, facts: Facts) -> Iterator[Any]:
    cores = now.cores.items()

    def of_cores(make: Any, name: str, text: str, values: dict[int, float]) -> Any:
        family = make(name, text, labels=("runtime_tag", "neuroncore"))
        for core, value in values.items():
            family.add_metric((facts.tag, str(core)), value)
        return family

    gauge, counter = metrics.GaugeMetricFamily, metrics.CounterMetricFamily
    yield of_cores(
        gauge, "neuroncore_utilization_ratio", "Busy share of the busiest engine, simulated",
        {core: _ratio(counters) for core, counters in cores},
    )  # fmt: skip
    yield of_cores(
        counter, "neuroncore_simulated_seconds", "Simulated time of programs",
        {core: counters.simulated_ns * 1e-9 for core, counters in cores},
    )  # fmt: skip
    yield of_cores(
        counter, "neuroncore_flops", "Floating-point operations of programs",
        {core: counters.flops for core, counters in cores},
    )  # fmt: skip
    for kind in MEMORY:
        yield of_cores(
            gauge, f"neuroncore_memory_usage_{kind}", "Device memory, bytes",
            {core: float(usage[kind]) for core, usage in facts.memory.items()},
        )  # fmt: skip
    yield from _totals(metrics, now, facts)


def _totals(metrics: Any, now: Snapshot, facts: Facts) -> Iterator[Any]:
    gauge, counter = metrics.GaugeMetricFamily, metrics.CounterMetricFamily
    status = counter("execution_status", "Runs by outcome", labels=_labels("status_type"))
    for name, count in now.status.items():
        status.add_metric((facts.tag, name), count)
    yield status
    errors = counter("execution_errors", "Runs that failed", labels=_labels("error_type"))
    for name, count in now.errors.items():
        errors.add_metric((facts.tag, name), count)
    yield errors
    latency = gauge(
        "execution_latency_seconds", "Latency of the latest runs; device latency is simulated",
        labels=_labels("percentile", "latency_type"),
    )  # fmt: skip
    for kind, seconds in (("total", facts.total_latency), ("device", facts.device_latency)):
        for name, value in (percentiles(seconds) or {}).items():
            latency.add_metric((facts.tag, name, kind), value)
    yield latency
    memory = gauge(
        "neuron_runtime_memory_used_bytes", "Memory of the process",
        labels=_labels("memory_location"),
    )  # fmt: skip
    memory.add_metric((facts.tag, "host"), facts.host_bytes)
    device = sum(sum(usage.values()) for usage in facts.memory.values())
    memory.add_metric((facts.tag, "neuron_device"), device)
    yield memory


def _labels(*names: str) -> tuple[str, ...]:
    return ("runtime_tag", *names)


def _ratio(counters: CoreCounters) -> float:
    return counters.busy_ns / counters.simulated_ns if counters.simulated_ns else 0.0
