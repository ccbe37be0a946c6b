"""The command line: words, help, and input it cannot use. Nothing here starts the platform."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
import tomllib

import pytest

from neuronjax import __version__, options
from neuronjax.cli.main import COMMANDS, main
from tests.conftest import PROJECT


def test_console_script() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["neuronjax"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: neuronjax")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"neuronjax {__version__}\n"


def test_the_package_is_the_command_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m neuronjax`."""
    monkeypatch.setattr(sys, "argv", ["neuronjax", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("neuronjax", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"neuronjax {__version__}\n"


def test_a_command_does_not_load_others() -> None:
    """Fits of constants are of `validate` alone: SciPy takes half a second."""
    code = (
        "import sys; from neuronjax.cli.main import main\n"
        "try: main(['ls', '--help'])\n"
        "finally: print([name for name in sys.modules if name.startswith('neuronjax.cli.')],"
        " 'scipy.optimize' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "neuronjax.cli.ls" in told.stdout
    assert "neuronjax.cli.validate" not in told.stdout
    assert told.stdout.endswith(" False\n")


def test_lint_says_that_values_are_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lint", "--help"])
    assert "sees zeros" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["polish"], "'polish' is not one of calibrate, completion, cost,"),
        (["lnt"], "Did you mean lint?"),
        (["lint", "--sevrity=error", "x.py"], "'--sevrity=error'. Did you mean --severity?"),
        (["estimate", "x:y", "--batch=0"], "--batch: '0' is not a whole number from 1"),
        (["lint"], "the following arguments are required: SCRIPT"),
        (["lint", "--severity=fatal", "x.py"], "'fatal' is not one of error, warning, note"),
        (["lint", "--format=xml", "x.py"], "'xml' is not one of text, json"),
        (["lint", "--timeout=soon", "x.py"], "'soon' is not a number of seconds"),
        (["lint", "--timeout=-1", "x.py"], "'-1' is not a number of seconds"),
    ],
)
def test_arguments_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("neuronjax")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lint", "no_such_script.py"], "there is no script 'no_such_script.py'"),
        (["lint", "-m", "no_such_module"], "there is no module 'no_such_module'"),
        (["lint", "--target=trn9", __file__], "'trn9' is not a known instance"),
        (["lint", "--sdk=1.0", __file__], "must be a version from 2.20 to 2.32"),
        (["lint", "--target=trn9", "--sdk=new", __file__], "must be a version"),
    ],
)
def test_impossible(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = options.load()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("neuronjax: ")
    assert message in captured.err
    assert captured.out == ""
    assert options.load() == before
