"""``neuronjax top``: the counters of a running process, as a table that refreshes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from neuronjax.cli.monitor import DONE, add_port, reports
from neuronjax.display import duration
from neuronjax.profiling import text

_BAR = 20
_CLEAR = "\x1b[2J\x1b[H"
_GIB = 1 << 30

DESCRIPTION = """\
Shows a process's counters: cores, memory, programs. The process must have been started with
NEURONJAX_MONITOR_PORT. If the output is not a terminal, the tables follow one another.

Utilisation is that of the busiest engine in simulated time.
"""


def table(report: Mapping[str, Any]) -> str:
    """A report as tables for a terminal."""
    data = report["neuron_runtime_data"][0]
    runtime, hardware = data["report"], report["neuron_hardware_info"]
    stats = runtime["execution_stats"]
    head = (
        f"{report['instance_info']['instance_type']}  pid {data['pid']}  LNC "
        f"{hardware['logical_neuroncore_config']}  {stats['execution_summary']['completed']} runs "
        f"in {runtime['period']:.1f} s"
    )
    failed = {name: count for name, count in stats["error_summary"].items() if count}
    if failed:
        head += "  errors: " + ", ".join(f"{count} {name}" for name, count in failed.items())
    return "\n\n".join([head, _cores(runtime), _programs(runtime)])


def _cores(runtime: Mapping[str, Any]) -> str:
    counters = runtime["neuroncore_counters"]["neuroncores_in_use"]
    used = runtime["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    rows = []
    for core, counter in counters.items():
        part = counter["neuroncore_utilization"]
        memory = used["neuroncore_memory_usage"][core]
        filled = round(_BAR * min(part, 100) / 100)
        rows.append((
            f"NC {core}", f"[{'|' * filled}{' ' * (_BAR - filled)}] {part:5.1f} %",
            f"{counter['flops'] / 1e12:.2f}", duration(counter["simulated_time"] * 1e9),
            f"{memory['tensors'] / _GIB:.2f}", f"{sum(memory.values()) / _GIB:.2f}",
        ))  # fmt: skip
    names = ("core", "utilisation", "TFLOP/s", "device time", "tensors GiB", "used GiB")
    return text.table(names, rows)


def _programs(runtime: Mapping[str, Any]) -> str:
    rows = []
    loaded = sorted(
        runtime["memory_used"]["loaded_models"],
        key=lambda program: -(program["device_latency"] or 0) * program["executions"],
    )
    for program in loaded[:12]:
        latency = program["device_latency"]
        rows.append((
            program["name"], str(program["executions"]), str(len(program["neuroncores"])),
            "not timed" if latency is None else duration(latency * 1e9),
        ))  # fmt: skip
    if not rows:
        return "no program has run yet."
    notes = [f"{program['name']}: {program['note']}" for program in loaded[:12] if program["note"]]
    return "\n".join([text.table(("program", "runs", "cores", "time/run"), rows), *notes])


def run(arguments: argparse.Namespace) -> int:
    """Shows reports until the process ends."""
    clear = _CLEAR if sys.stdout.isatty() else ""
    try:
        for report in reports(arguments):
            print(f"{clear}{table(report)}\n", flush=True)
    except KeyboardInterrupt:
        pass
    return DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_port(parser, 2.0)
