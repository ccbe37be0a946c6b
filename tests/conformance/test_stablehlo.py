"""The StableHLO project's own expected values, as a platform of JAX computes them.

The programs run in processes of their own, since their arithmetic mode and 64-bit types must be set
before JAX starts; in parts, so that two workers of pytest do not both run all.
NEURONJAX_CONFORMANCE_PLATFORM chooses another platform than `neuron`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable

import pytest

from tests import forked
from tests.conformance.stablehlo_data import archive_path, read_programs

PLATFORM = os.environ.get("NEURONJAX_CONFORMANCE_PLATFORM", "neuron")
SECONDS = 600

if not archive_path().exists():
    pytest.skip(
        f"the StableHLO conformance data is not at {archive_path()}: "
        "set NEURONJAX_CONFORMANCE_DIR to the folder that holds it",
        allow_module_level=True,
    )

NAMES = [program.name for program in read_programs(archive_path())]
PARTS = 8
OF_PART = [(part, name) for part in range(PARTS) for name in NAMES[part::PARTS]]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """Of a part: program name to what went wrong with it, empty if nothing did."""

    @functools.cache
    def of_part(part: int) -> dict[str, str]:
        out = tmp_path_factory.mktemp("stablehlo") / "results.jsonl"
        flags = (f"--platform={PLATFORM}", f"--out={out}", f"--part={part}/{PARTS}")
        process = forked.run(["-m", "tests.conformance.stablehlo", *flags], timeout=SECONDS)
        lines = out.read_text().splitlines() if out.exists() else []
        results = (json.loads(line) for line in lines)
        found = {result["name"]: result["error"] for result in results}
        not_run = f"not run, the process ended with {process.returncode}: {process.stderr[-500:]}"
        return dict.fromkeys(NAMES, not_run) | found

    return of_part


@pytest.mark.parametrize(("part", "name"), OF_PART)
def test_program(part: int, name: str, errors: Callable[[int], dict[str, str]]) -> None:
    assert errors(part)[name] == ""
