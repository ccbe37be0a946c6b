"""``neuronjax doctor`` on this installation, and on what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.cli import doctor
from neuronjax.cli.main import main


def test_an_installation_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "   ok  jaxlib " in printed
    assert "a small program ran in " in printed
    assert "8 devices, the first is " in printed
    assert "extra profile is installed" in printed
    assert "group models is installed" in printed


def test_a_wheel_is_told_of_its_own_extras_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path / "pyproject.toml")
    assert list(doctor.checked("groups")) == []


def test_what_a_checkout_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[dependency-groups]\nserve = ["no-such-package>=1", "numpy"]')
    monkeypatch.setattr(doctor, "CHECKOUT", project)
    texts = [check.text for check in doctor.checked("groups")]
    assert "group serve lacks no-such-package: pip install --group serve" in texts


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("NEURONJAX_TARGET", "trn9.large", "Target 'trn9.large' is not a known"),
        ("NEURONJAX_NUMERICS", "exact", "NEURONJAX_NUMERICS='exact' is not allowed; it must be"),
        ("NEURONJAX_NUMERIC", "ieee", "variable NEURONJAX_NUMERIC is unknown"),
    ],
)
def test_what_is_wrong_is_named(
    variable: str,
    value: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["doctor", "--no-run"]) == 1
    assert f"WRONG  {text}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("raise ValueError('no devices')", "a small program failed: ValueError: no devices"),
        ("import time; time.sleep(60)", "a small program did not finish within 1 seconds"),
    ],
    ids=["fails", "hangs"],
)
def test_a_program_that_does_not_run(
    program: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROGRAM", program)
    monkeypatch.setattr(doctor, "SECONDS", 1 if "sleep" in program else 120)
    (check,) = doctor.checked("execution")
    assert (check.is_fine, check.text) == (False, text)
