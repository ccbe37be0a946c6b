"""``neuronjax monitor``: the counters of a running process, as lines of JSON."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from typing import Any

from neuronjax.cli import arguments
from neuronjax.errors import MonitorError

DONE = 0
"""Exit code: the process ended, or as many reports as requested were printed."""

DESCRIPTION = """\
Prints a process's counters, one object per period, as neuron-monitor does: utilisation by core,
runs, errors, latencies, memory. The process must have been started with NEURONJAX_MONITOR_PORT,
which also serves http://127.0.0.1:PORT/metrics for Prometheus.

Times and utilisation of cores are simulated; total_latency is this machine's.

Example: NEURONJAX_MONITOR_PORT=8000 JAX_PLATFORMS=neuron python train.py &
         neuronjax monitor --port=8000
"""


def add_port(parser: argparse.ArgumentParser, period: float) -> None:
    """Adds the arguments that `top` has, too."""
    parser.add_argument(
        "--port", type=arguments.port, required=True, help="NEURONJAX_MONITOR_PORT of the process"
    )
    parser.add_argument(
        "--period",
        type=arguments.seconds(0.01),
        default=period,
        metavar="SECONDS",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--count", type=arguments.whole(0), default=0, help="number of reports (0: until it ends)"
    )


def ask(port: int, period: float) -> dict[str, Any]:
    """Requests a report. MonitorError: no process answers."""
    address = f"http://127.0.0.1:{port}/json?period={period}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            report = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise MonitorError(
            f"no process answers on port {port} ({error}); start it with "
            f"NEURONJAX_MONITOR_PORT={port}, and wait for its first computation."
        ) from None
    if not isinstance(report, dict) or "neuron_runtime_data" not in report:
        raise MonitorError(
            f"what answers on port {port} is not a neuronjax process; check NEURONJAX_MONITOR_PORT."
        )
    return report


def reports(given: argparse.Namespace) -> Any:
    """Yields one report after the other, until the process ends."""
    number = 0
    while True:
        try:
            yield ask(given.port, given.period)
        except MonitorError:
            if not number:
                raise
            return
        number += 1
        if number == given.count:
            return
        time.sleep(given.period)


def run(given: argparse.Namespace) -> int:
    """Prints reports until the process ends."""
    try:
        for report in reports(given):
            print(json.dumps(report), flush=True)
    except KeyboardInterrupt:
        pass
    return DONE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_port(parser, 5.0)
