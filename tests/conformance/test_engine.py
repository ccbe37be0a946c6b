"""A program of every operation on engines; and the counts of all programs, as last measured."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from tests.conformance import engine
from tests.conformance.stablehlo_data import Program, archive_path

if not archive_path().exists():
    pytest.skip(
        f"the StableHLO conformance data is not at {archive_path()}: "
        "set NEURONJAX_CONFORMANCE_DIR to the folder that holds it",
        allow_module_level=True,
    )


def _sample() -> dict[str, Program]:
    """The first program of each operation."""
    found: dict[str, Program] = {}
    for program in engine.programs("*", ""):
        found.setdefault(program.family, program)
    return found


SAMPLE = _sample()

HOST = frozenset({"triangular_solve"})
"""Operations that no engine does."""


@pytest.mark.parametrize("family", SAMPLE)
def test_program(family: str) -> None:
    with jax.enable_x64(True):
        result = engine.run_program(SAMPLE[family])
    assert result.error == ""
    assert set(result.host) <= HOST


def test_counts() -> None:
    counts = json.loads((Path(engine.__file__).parent / "engine.json").read_text())
    assert counts["agreeing"] == counts["eligible"] == 970
    assert counts["without_host"] >= 0.9 * counts["eligible"]
