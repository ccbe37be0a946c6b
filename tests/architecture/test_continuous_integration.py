"""What continuous integration runs: nothing that is missing there passes for tested."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
