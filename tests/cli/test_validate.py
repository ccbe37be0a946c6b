"""``neuronjax validate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuronjax.cli.main import main
from neuronjax.timing.validation.points import POINTS


def test_prints_the_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "validation.json"
    assert main(["validate", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "public points" in printed
    found = json.loads(out.read_text())
    assert [each["name"] for each in found["points"]] == [point.name for point in POINTS]
    for each in found["points"]:
        assert each["ratio"] == pytest.approx(each["predicted"] / each["published"])


def test_no_point_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--only", "zzzz"]) == 2
    assert "'zzzz' matches the beginning of no point's name" in capsys.readouterr().err
