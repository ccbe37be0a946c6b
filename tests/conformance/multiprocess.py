"""JAX's own tests of several processes, on neuron and on cpu: which pass in all processes.

    python -m tests.conformance.multiprocess JAX_REPO [--platforms neuron cpu] [--files ...]

JAX_REPO is a checkout of the tag of the installed jax. JAX's harness starts the processes of a
file; each runs every test, in step with the others. A test counts as what the worst of its
processes says, one without a word as crashed. Counts and failures go to multiprocess.json, with the
commit that ran them. JAX skips most of CrossHostTransferTest on cpu, which has no copies from one
host to another outside of programs; neither has neuron, which is not skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.suite_runner import PROJECT, commit

BOARD = Path(__file__).with_name("multiprocess.json")
FOLDER = "tests/multiprocess"
NOT_OURS = frozenset({"tpu_device_test.py", "socket_transfer_test.py", "pgle_test.py"})
"""Of TPUs, of a transfer server of other platforms, of profiles for XLA:GPU."""

CORES = 2
"""Devices of each process, as JAX runs these tests."""
ENVIRONMENTS = {
    "neuron": {
        "JAX_PLATFORMS": "neuron,cpu",
        "NEURONJAX_TARGET": "trn2.3xlarge",
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "NEURON_RT_NUM_CORES": str(CORES),
        "NEURONJAX_NUMERICS": "ieee",
        "NEURONJAX_LEGALITY": "off",
        "NEURONJAX_SIMULATE": "0",
    },
    "cpu": {"JAX_PLATFORMS": "cpu"},
}
_SECONDS = 60
"""What JAX's harness gives processes to start, and to come to the same test."""

_BEGIN = re.compile(r"^\[ RUN      \] (\S+.*)$")
_OUTCOME = re.compile(r"^\[\s*(OK|FAILED|SKIPPED)\s*\] (\S+.*?)(?: - .*)?$")
_WORST = ("crashed", "failed", "skipped", "passed")
_NAMES = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def outcomes_of_process(log: str) -> dict[str, str]:
    """Test -> outcome, from what absl prints."""
    outcomes: dict[str, str] = {}
    for line in log.splitlines():
        if begin := _BEGIN.match(line):
            outcomes.setdefault(begin[1], "crashed")
        elif outcome := _OUTCOME.match(line):
            outcomes[outcome[2]] = _NAMES[outcome[1]]
    return outcomes


def worst(processes: Sequence[dict[str, str]]) -> dict[str, str]:
    """Test -> the worst outcome in any process; crashed where one has none."""
    tests = {test for process in processes for test in process}
    return {
        test: min((process.get(test, "crashed") for process in processes), key=_WORST.index)
        for test in sorted(tests)
    }


def run(path: Path, platform: str, processes: int, timeout: float) -> dict[str, str]:
    """Outcomes of one file."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ENVIRONMENTS[platform]
        environment |= {
            "TEST_UNDECLARED_OUTPUTS_DIR": folder,
            # The harness starts processes outside of virtual environments, with these paths only.
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path[1:]]),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={CORES}",
        }
        options = [f"--num_processes={processes}"]
        options += [f"--{name}={_SECONDS}" for name in ("barrier_timeout", "heartbeat_timeout",
                                                       "initialization_timeout")]  # fmt: skip
        job = subprocess.Popen(
            [sys.executable, str(path), *options],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        try:
            job.wait(timeout)
        except subprocess.TimeoutExpired:
            job.terminate()  # the harness ends its processes
            job.wait()
        logs = [Path(folder, f"jax_{i}_stderr.log") for i in range(processes)]
        return worst([outcomes_of_process(log.read_text(errors="replace")) for log in logs])


def main() -> None:
    """Runs the files and writes the board."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--platforms", nargs="+", default=["cpu", "neuron"], choices=ENVIRONMENTS)
    parser.add_argument("--files", nargs="+", help="names of test files (default: all)")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one file")
    chosen = parser.parse_args()
    files = chosen.files or sorted(
        path.name
        for path in (chosen.repository / FOLDER).glob("*_test.py")
        if path.name not in NOT_OURS
    )
    board = json.loads(BOARD.read_text()) if BOARD.exists() else {}
    for name in files:
        for platform in chosen.platforms:
            path = chosen.repository / FOLDER / name
            outcomes = run(path, platform, chosen.processes, chosen.timeout)
            board.setdefault(name, {})[platform] = {
                "commit": commit(),
                "counts": dict(sorted(Counter(outcomes.values()).items())),
                "not passed": {t: o for t, o in outcomes.items() if o in _WORST[:2]},
            }
            print(name, platform, board[name][platform], flush=True)
            BOARD.write_text(json.dumps(board, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
