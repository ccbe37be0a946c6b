"""Models of Neuron's guide without a config.json, and the verdicts that the documentation gives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from launch import fit_guide
from tests.conftest import RunPython

MESH = AbstractMesh((2, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
PAGE = Path(__file__).parents[2] / "docs" / "estimates.md"


def verdicts() -> dict[str, str]:
    """Model -> verdict, of the page's table."""
    _, _, after = PAGE.read_text().partition("| `neuronjax fit … --target=inf2.xlarge` |")
    rows = [line.split("|")[1:-1] for line in after.splitlines()[2:] if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows[:8]]
    return {row[1].strip("`"): row[3] for row in cells}


def test_the_table_has_every_row_of_the_guide() -> None:
    found = verdicts()
    assert len(found) == 8
    assert set(found.values()) <= {"fits well", "fits with limits"}


def test_a_forecast_has_a_row_for_each_series() -> None:
    made = fit_guide.lstm(mesh=MESH, dim=8, times=4)
    out = jax.eval_shape(made["fn"], *made["arguments"])
    assert (out.shape, made["samples"]) == ((2, 1, 32), 2)


def test_an_image_has_so_many_objects() -> None:
    made = fit_guide.faster_rcnn(mesh=MESH, batch=4, size=64)
    out = jax.eval_shape(made["fn"], *made["arguments"])
    assert (out.boxes.shape, out.labels.shape) == ((4, 100, 4), (4, 100))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "launch.fit_guide:lstm"])
def test_verdicts_are_those_of_the_page(name: str, run_python: RunPython) -> None:
    code = f"""
        import sys
        from neuronjax.cli.main import main
        sys.argv = ["neuronjax", "fit", {name!r}, "--target=inf2.xlarge", "--format=json"]
        main()
    """
    settings = {name: None for name in os.environ if name.startswith(("NEURON", "XLA_", "JAX_"))}
    done = run_python(code, env=settings)
    assert {fit["verdict"] for fit in json.loads(done.stdout)} == {verdicts()[name]}, done.stderr
