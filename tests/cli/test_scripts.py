"""Running a script inside the process: arguments, output, and every way a script can end."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronjax.cli import scripts
from neuronjax.errors import ScriptError


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process keeps its arguments, path and signal handlers."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(folder: Path, code: str, *arguments: str, timeout: float = 0) -> scripts.Outcome:
    script = folder / "script.py"
    script.write_text(code)
    return scripts.run(str(script), arguments, is_module=False, timeout=timeout)


def test_sees_what_python_would_show_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    code = "import sys, beside; print(__name__, sys.argv[1:], beside.WORD, __file__)"
    assert run(tmp_path, code, "--a", "b").error is None
    assert capsys.readouterr().out == (
        f"__main__ ['--a', 'b'] beside {tmp_path.resolve() / 'script.py'}\n"
    )


def test_options_after_the_script_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="neuronjax command")
    parser.add_argument("--target")
    scripts.add_arguments(parser)
    given = parser.parse_args(["--target=a", "train.py", "--target=b", "--steps", "3"])
    assert (given.target, given.arguments) == ("a", ["--target=b", "--steps", "3"])
    assert capsys.readouterr().err == (
        "note: --target=b stands after the script and goes to it; options of neuronjax command go "
        "before the script.\n"
    )


def test_modules_run_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    scripts.check("package_of_a_test.job", is_module=True)
    outcome = scripts.run("package_of_a_test.job", ["1"], is_module=True, timeout=0)
    assert outcome.error is None
    assert capsys.readouterr().out == "__main__ ['1']\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("pass", None),
        ("import sys; sys.exit()", None),
        ("import sys; sys.exit(0)", None),
        ("import sys; sys.exit(3)", "it exited with 3"),
        ("import sys; sys.exit('no data')", "it exited with 'no data'"),
        ("1 / 0", "it raised ZeroDivisionError: division by zero"),
        ("raise ValueError('first\\nsecond')", "it raised ValueError: first"),
        ("assert False", "it raised AssertionError: "),
        ("raise KeyboardInterrupt", "it was interrupted"),
        ("def f(:", "it raised SyntaxError: "),
    ],
)
def test_ends(tmp_path: Path, code: str, error: str | None) -> None:
    outcome = run(tmp_path, code)
    assert outcome.error == error or (outcome.error or "").startswith(str(error))


def test_traceback_begins_with_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "def f():\n    return 1 / 0\n\nf()\n")
    heading, first, *_ = capsys.readouterr().err.splitlines()
    assert heading == "Traceback (most recent call last):"
    assert first == f'  File "{tmp_path.resolve() / "script.py"}", line 4, in <module>'


def test_endless_loops_are_stopped(tmp_path: Path) -> None:
    outcome = run(tmp_path, "while True:\n    pass\n", timeout=0.2)
    assert outcome.error.startswith("it did not end within 0.2 seconds; results are zeros")


def test_scripts_that_catch_the_interrupt_are_told_of(tmp_path: Path) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\n"
    assert run(tmp_path, code, timeout=0.2).error.startswith("it did not end within 0.2 seconds")


@pytest.mark.parametrize(
    ("name", "is_module", "message"),
    [
        ("no_such_script.py", False, r"there is no script 'no_such_script.py'; give the path"),
        (".", False, r"there is no script '\.'"),
        ("no_such_module.job", True, r"there is no module 'no_such_module.job'"),
    ],
)
def test_missing(name: str, is_module: bool, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        scripts.check(name, is_module)
