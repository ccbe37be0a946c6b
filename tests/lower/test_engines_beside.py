"""Finished programs with engines beside each other: addresses and semaphores change no value."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder
from neuronjax.lower.memory.allocate import allocate
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.program.verify import verify
from tests.lower import test_control_flow, test_donation, test_gather, test_pairs, test_scatter
from tests.lower.differential import EXACT, assert_close, emulated, lowered, sent

CASES = {
    "gather": (test_gather, ("rows", "windows in parts", "vmapped great windows", "columns")),
    "scatter": (
        test_scatter,
        (
            "add fractions",
            "add outside",
            "multiply of int8",
            "overlapping windows",
            "great windows",
            "what is not finite stays where it is",
            "sums in parts",
        ),
    ),
    "pairs": (test_pairs, ("gate", "deep", "attention's gradients")),
    "control flow": (test_control_flow, ("cached", "scattered", "exchanged in a ring", "nested")),
    "donation": (test_donation, tuple(test_donation.CASES)),
}


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, (_, names) in CASES.items() for name in names]
)
def test_same_values(family: str, name: str) -> None:
    function, arguments, *rest = CASES[family][0].CASES[name]
    donated = rest[0] if rest else ()
    jitted = jax.jit(function, donate_argnums=donated, keep_unused=True)
    code = sent(jitted.trace(*arguments))
    program = lowered(code)
    finished = synchronise(allocate(program))
    assert verify(finished) == ()
    arrays = [np.array(each) for each in arguments]
    (wanted,) = emulated(program, code, [arrays])
    (found,) = emulated(finished, code, [arrays], order=DataflowOrder(seed=1, adversarial=True))
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, EXACT)


@pytest.mark.parametrize("chip", ["trainium1", "trainium3"])
@pytest.mark.parametrize("family", ["gather", "scatter", "control flow", "pairs"])
def test_generations(family: str, chip: str) -> None:
    """Every generation could run the programs."""
    module, names = CASES[family]
    for name in names:
        function, arguments = module.CASES[name]
        code = sent(jax.jit(function).trace(*arguments))
        assert verify(lowered(code, chip=chip)) == ()
