"""Programs of every operation on engines, by the way of users; and all counts as last measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

from neuronjax.program.verify import verify
from tests.conformance import engine, engine_door, one_clock
from tests.conformance.stablehlo_data import PROJECT, archive_path
from tests.lower import differential

if not archive_path().exists():
    pytest.skip(
        f"the StableHLO conformance data is not at {archive_path()}: "
        "set NEURONJAX_CONFORMANCE_DIR to the folder that holds it",
        allow_module_level=True,
    )

OF_EACH = 3
SECONDS = 600
SAMPLE = tuple(engine_door.sample(OF_EACH))
FAMILIES = {program.family: program for program in reversed(SAMPLE)}
"""Operation -> its first program."""
HOST = frozenset({"triangular_solve"})
"""Operations that no engine does."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Program name -> what went wrong with it, empty if nothing did."""
    out = tmp_path_factory.mktemp("engine") / "results.jsonl"
    command = [sys.executable, "-m", "tests.conformance.engine_door"]
    process = subprocess.run(
        [*command, f"--of_each={OF_EACH}", f"--out={out}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    results = map(json.loads, out.read_text().splitlines() if out.exists() else ())
    not_run = f"not run, the process ended with {process.returncode}: {process.stderr[-500:]}"
    names = [program.name for program in SAMPLE]
    return dict.fromkeys(names, not_run) | {each["name"]: each["error"] for each in results}


def test_sample() -> None:
    counts = Counter(program.family for program in SAMPLE)
    assert len(SAMPLE) >= 200
    assert len(counts) >= 100


@pytest.mark.parametrize("name", [program.name for program in SAMPLE])
def test_program(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_engines_do_it(family: str) -> None:
    with jax.enable_x64(True):
        program = differential.lowered(engine.code_of(FAMILIES[family]))
    assert verify(program) == ()
    assert set(differential.host_operations(program)) <= HOST


def test_counts() -> None:
    counts = json.loads((Path(engine.__file__).parent / "engine.json").read_text())
    assert counts["agreeing"] == counts["eligible"] == 970
    assert counts["without_host"] >= 0.9 * counts["eligible"]


@pytest.mark.parametrize("family", sorted(FAMILIES)[::8])
def test_two_clocks_agree(family: str) -> None:
    verdict = one_clock.verdict_of(FAMILIES[family], most_runs=3_000)
    assert verdict.startswith("exact")
