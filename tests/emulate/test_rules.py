"""Every instruction computes what its page says."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.emulate.table import RULES
from neuronjax.program.table import INSTRUCTIONS
from tests.emulate.programs import GOLDEN
from tests.emulate.rule_cases import CASES
from tests.emulate.single import execute

ELSEWHERE = {
    "custom_op", "rng", "rand2", "rand_set_state", "rand_get_state", "set_rng_seed", "dropout",
    "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "rank_id", "sendrecv",
    "collective_permute_implicit", "all_gather_v", "all_to_all_v",
    "register_store", "semaphore_event", "device_print",
}  # fmt: skip
"""Mnemonics with tests of their own."""


def test_every_instruction_has_a_rule() -> None:
    assert set(RULES) == set(INSTRUCTIONS.values())


def test_every_instruction_has_a_case() -> None:
    golden = "\n".join(path.read_text() for path in GOLDEN.glob("*.txt"))
    in_golden = {name for name in INSTRUCTIONS if f" {name} " in golden}
    assert {name.split()[0] for name in CASES} | in_golden | ELSEWHERE == set(INSTRUCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    case = CASES[name]
    results = execute(case.text, case.inputs, case.outputs, **case.options)
    with np.errstate(invalid="ignore"):
        expected = case.expected(**case.inputs)
    values = expected if isinstance(expected, tuple) else (expected,)
    for found, value in zip(results.values(), values, strict=True):
        if value is not None:
            assert_near(found, np.asarray(value), case.steps)


def assert_near(found: np.ndarray, value: np.ndarray, steps: float) -> None:
    assert found.shape == value.shape
    if steps == 0:
        np.testing.assert_array_equal(found.astype(value.dtype), value)
    else:
        wide = value.astype(np.float64)
        # Sums may cancel: a step is one of the greatest result there.
        size = np.abs(wide) if steps < 1 else np.abs(wide).max()
        assert np.all(np.abs(found.astype(np.float64) - wide) <= steps * 2.0**-23 * size)
