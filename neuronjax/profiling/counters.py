"""What a running process reports about itself, in neuron-monitor's JSON.

Core utilisation is a percentage of simulated time: how long the busiest engine is busy while
programs run. `simulated_time` says how much time was simulated in a period.

Source: Neuron docs, tools/neuron-sys-tools, neuron-monitor user guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PERCENTILES = (0, 1, 25, 50, 75, 99, 100)
MEMORY = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")

STATUS = (
    "completed", "completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input",
    "failed_to_queue",
)  # fmt: skip
ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")


@dataclass(frozen=True, slots=True)
class CoreCounters:
    """Sums of one core since the process began: times in ns, work in FLOP."""

    simulated_ns: float = 0.0
    busy_ns: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Sums since the process began."""

    seconds: float
    status: Mapping[str, int]
    errors: Mapping[str, int]
    cores: Mapping[int, CoreCounters]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The present state of the process and its device."""

    pid: int
    tag: str
    target: str
    device_type: str
    core_version: str
    lnc: int
    device_count: int
    cores_per_device: int
    device_memory_bytes: int
    #: Core -> bytes by `MEMORY`.
    memory: Mapping[int, Mapping[str, int]]
    host_bytes: int
    loaded: Sequence[Mapping[str, Any]]
    #: Latest runs in seconds: from being enqueued to their end here; and simulated.
    total_latency: Sequence[float]
    device_latency: Sequence[float]
    #: Programs whose simulated time is not known yet.
    not_timed: int


def report(before: Snapshot, now: Snapshot, facts: Facts) -> dict[str, Any]:
    """What happened between two snapshots, as neuron-monitor prints it."""
    period = max(now.seconds - before.seconds, 1e-9)
    runtime = {
        "period": period,
        "neuroncore_counters": {
            "period": period,
            "neuroncores_in_use": _cores(before, now),
            "error": "",
        },
        "execution_stats": _executions(before, now, facts, period),
        "memory_used": {"period": period, **_memory(facts), "error": ""},
    }
    return {
        "neuron_runtime_data": [
            {
                "pid": facts.pid,
                "neuron_runtime_tag": facts.tag,
                "error": "",
                "report": runtime,
            }
        ],
        "system_data": {},
        "instance_info": {
            "instance_name": "", "instance_id": "", "instance_type": facts.target,
            "instance_availability_zone": "", "instance_region": "", "ami_id": "",
            "subnet_id": "", "error": "",
        },
        "neuron_hardware_info": {
            "neuron_device_type": facts.device_type,
            "neuroncore_version": facts.core_version,
            "neuron_device_count": facts.device_count,
            "neuron_device_memory_size": facts.device_memory_bytes,
            "neuroncore_per_device_count": facts.cores_per_device,
            "logical_neuroncore_config": facts.lnc,
            "is_simulation": True,
            "error": "",
        },
    }  # fmt: skip


def _cores(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    cores = {}
    for core, counters in now.cores.items():
        old = before.cores.get(core, CoreCounters())
        simulated = counters.simulated_ns - old.simulated_ns
        busy, flops = counters.busy_ns - old.busy_ns, counters.flops - old.flops
        cores[str(core)] = {
            "neuroncore_utilization": 100 * busy / simulated if simulated else 0.0,
            "flops": round(flops / simulated * 1e9) if simulated else 0,
            "simulated_time": simulated * 1e-9,
        }
    return cores


def _executions(before: Snapshot, now: Snapshot, facts: Facts, period: float) -> dict[str, Any]:
    return {
        "period": period,
        "error_summary": {name: now.errors[name] - before.errors.get(name, 0) for name in ERRORS},
        "execution_summary": {
            name: now.status[name] - before.status.get(name, 0) for name in STATUS
        },
        "latency_stats": {
            "total_latency": percentiles(facts.total_latency),
            "device_latency": percentiles(facts.device_latency),
        },
        "programs_not_timed_yet": facts.not_timed,
        "error": "",
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Percentiles under names such as p50; None if there are no samples."""
    if not seconds:
        return None
    values = np.percentile(np.asarray(seconds), PERCENTILES).tolist()
    return {f"p{name}": value for name, value in zip(PERCENTILES, values, strict=True)}


def _memory(facts: Facts) -> dict[str, Any]:
    device = sum(sum(usage.values()) for usage in facts.memory.values())
    cores = {str(core): dict(usage) for core, usage in facts.memory.items()}
    return {
        "neuron_runtime_used_bytes": {
            "host": facts.host_bytes,
            "neuron_device": device,
            "usage_breakdown": {
                "host": {"application_memory": facts.host_bytes},
                "neuroncore_memory_usage": cores,
            },
        },
        "loaded_models": [dict(model) for model in facts.loaded],
    }
