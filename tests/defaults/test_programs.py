from __future__ import annotations

import pytest

from tests.conftest import RunPython
from tests.defaults import programs
from tests.defaults.apart import outcomes


@pytest.fixture(scope="module")
def found(run_python: RunPython) -> dict[str, str]:
    return outcomes("programs", run_python)


@pytest.mark.parametrize("name", programs.CASES)
def test_program_is_that_of_cpu(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""
