"""The StableHLO project's own expected values, as a platform of JAX computes them.

The programs run in one process of their own, since their arithmetic mode and 64-bit types must be
set before JAX starts. NEURONJAX_CONFORMANCE_PLATFORM chooses another platform than `neuron`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conformance.stablehlo_data import PROJECT, archive_path, read_programs

PLATFORM = os.environ.get("NEURONJAX_CONFORMANCE_PLATFORM", "neuron")
SECONDS = 600

if not archive_path().exists():
    pytest.skip(
        f"the StableHLO conformance data is not at {archive_path()}: "
        "set NEURONJAX_CONFORMANCE_DIR to the folder that holds it",
        allow_module_level=True,
    )

NAMES = [program.name for program in read_programs(archive_path())]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Program name to what went wrong with it, empty if nothing did."""
    out = tmp_path_factory.mktemp("stablehlo") / "results.jsonl"
    command = [sys.executable, "-m", "tests.conformance.stablehlo"]
    process = subprocess.run(
        [*command, f"--platform={PLATFORM}", f"--out={out}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    lines = out.read_text().splitlines() if out.exists() else []
    results = (json.loads(line) for line in lines)
    found = {result["name"]: result["error"] for result in results}
    not_run = f"not run, the process ended with {process.returncode}: {process.stderr[-500:]}"
    return dict.fromkeys(NAMES, not_run) | found


@pytest.mark.parametrize("name", NAMES)
def test_program(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""
