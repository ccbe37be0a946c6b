"""``neuronjax top``: what a running process counts, as a table that refreshes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from neuronjax.cli.command import Command
from neuronjax.cli.monitor import DONE, add_port, reports
from neuronjax.profiling import text

_BAR = 20
_CLEAR = "\x1b[2J\x1b[H"
_GIB = 1 << 30

_DESCRIPTION = """\
Shows what a process counts: cores, memory, programs. The process must have been started with
NEURONJAX_MONITOR_PORT. Where the output is no terminal, tables follow each other.

Utilisation is that of the busiest engine in simulated time.
"""


def table(report: Mapping[str, Any]) -> str:
    """One report for people."""
    data = report["neuron_runtime_data"][0]
    found, hardware = data["report"], report["neuron_hardware_info"]
    stats = found["execution_stats"]
    head = (
        f"{report['instance_info']['instance_type']}  pid {data['pid']}  LNC "
        f"{hardware['logical_neuroncore_config']}  {stats['execution_summary']['completed']} runs "
        f"in {found['period']:.1f} s"
    )
    failed = {name: count for name, count in stats["error_summary"].items() if count}
    if failed:
        head += "  errors: " + ", ".join(f"{count} {name}" for name, count in failed.items())
    return "\n\n".join([head, _cores(found), _programs(found)])


def _cores(found: Mapping[str, Any]) -> str:
    counters = found["neuroncore_counters"]["neuroncores_in_use"]
    used = found["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    rows = []
    for core, each in counters.items():
        part = each["neuroncore_utilization"]
        memory = used["neuroncore_memory_usage"][core]
        filled = round(_BAR * min(part, 100) / 100)
        rows.append((
            f"NC {core}", f"[{'|' * filled}{' ' * (_BAR - filled)}] {part:5.1f} %",
            f"{each['flops'] / 1e12:.2f}", text.time(each["simulated_time"] * 1e9),
            f"{memory['tensors'] / _GIB:.2f}", f"{sum(memory.values()) / _GIB:.2f}",
        ))  # fmt: skip
    names = ("core", "utilisation", "TFLOP/s", "device time", "tensors GiB", "used GiB")
    return text.table(names, rows)


def _programs(found: Mapping[str, Any]) -> str:
    rows = []
    loaded = sorted(
        found["memory_used"]["loaded_models"],
        key=lambda each: -(each["device_latency"] or 0) * each["executions"],
    )
    for each in loaded[:12]:
        latency = each["device_latency"]
        rows.append((
            each["name"], str(each["executions"]), str(len(each["neuroncores"])),
            "not timed yet" if latency is None else text.time(latency * 1e9),
        ))  # fmt: skip
    return text.table(("program", "runs", "cores", "time/run"), rows) if rows else "no program ran."


def run(arguments: argparse.Namespace) -> int:
    """Shows reports until the process ends."""
    clear = _CLEAR if sys.stdout.isatty() else ""
    try:
        for each in reports(arguments):
            print(f"{clear}{table(each)}\n", flush=True)
    except KeyboardInterrupt:
        pass
    return DONE


COMMAND = Command(
    help="cores, memory and programs of a running process",
    description=_DESCRIPTION,
    add_arguments=lambda parser: add_port(parser, 2.0),
    run=run,
)
