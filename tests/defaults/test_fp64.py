from __future__ import annotations

import pytest

from tests.conftest import RunPython
from tests.defaults import fp64
from tests.defaults.apart import outcomes


@pytest.fixture(scope="module")
def found(run_python: RunPython) -> dict[str, str]:
    return outcomes("fp64", run_python, JAX_ENABLE_X64="1")


@pytest.mark.parametrize("name", fp64.CASES)
def test_fp64_is_that_of_cpu(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""
