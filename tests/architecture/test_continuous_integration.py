"""What continuous integration runs: nothing that is missing there passes for tested."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests import budget, forked
from tests.conftest import PROJECT


def test_script_is_read_by_bash() -> None:
    subprocess.run(["bash", "-n", ".ci/run"], cwd=PROJECT, check=True)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("tests/conformance/test_stablehlo.py", "conformance data is not at /dev/null"),
        ("tests/profiling/test_page.py", "want of chromium"),
    ],
)
@pytest.mark.parametrize(("variable", "codes"), [("true", (1, 2)), ("", (0, 5))])
def test_what_is_missing(tests: str, reason: str, variable: str, codes: tuple[int, int]) -> None:
    """A failure in continuous integration, a message elsewhere."""
    missing = {"CI": variable, "NEURONJAX_CONFORMANCE_DIR": "/dev/null", "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "stablehlo or rendered", tests],
        cwd=PROJECT,
        env=missing,
        capture_output=True,
        text=True,
    )
    assert done.returncode in codes, done.stdout
    assert reason in done.stdout


BUSY = "import time; begin = time.process_time()\nwhile time.process_time() - begin < 0.3: pass"


def _burn() -> None:
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(_burn, id="in this process"),
        pytest.param(lambda: subprocess.run([sys.executable, "-c", BUSY]), id="in a process"),
        pytest.param(lambda: forked.run(["-c", BUSY]), id="in a forked process"),
    ],
)
def test_cpu_time_is_held(work: Callable[[], object]) -> None:
    refused = pytest.raises(pytest.fail.Exception, match=r"s of CPU time, and 0 are allowed")
    with refused, budget.held(0.2):
        work()
    with budget.held(0.2):
        time.sleep(0.3)
