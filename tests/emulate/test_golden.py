"""The hand-written programs compute what numpy computes in FP64."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.emulate.core import run
from tests.emulate.programs import CASES, GOLDEN, assert_close, golden, on_host


def test_every_program_has_a_case() -> None:
    assert CASES.keys() == {path.stem for path in GOLDEN.glob("*.txt")}


@pytest.mark.parametrize("name", CASES)
def test_program_order(name: str) -> None:
    case = CASES[name]
    arguments = case.arguments(np.random.default_rng(0))
    results = run(golden(name), arguments, host=on_host)
    assert_close(results[0], case.expected(arguments), case.tolerance)
