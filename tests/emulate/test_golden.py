"""The hand-written programs compute what numpy computes in FP64, in either order."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder, run
from tests.emulate.chain import chained
from tests.emulate.programs import CASES, GOLDEN, assert_close, golden, on_host

DATAFLOW = [DataflowOrder(0), DataflowOrder(1), DataflowOrder(0, adversarial=True)]
SYNCHRONISED = ["softmax"]
"""Programs whose semaphores are enough as they stand."""


def check(name: str, order: Order, *, chain: bool) -> None:
    case = CASES[name]
    arguments = case.arguments(np.random.default_rng(0))
    program = chained(golden(name)) if chain else golden(name)
    results = run(program, arguments, order=order, host=on_host)
    assert len(results) == program.ranks
    for each in results:
        assert_close(each, case.expected(arguments), case.tolerance)


def test_every_program_has_a_case() -> None:
    assert CASES.keys() == {path.stem for path in GOLDEN.glob("*.txt")}


@pytest.mark.parametrize("name", CASES)
def test_program_order(name: str) -> None:
    check(name, ProgramOrder(), chain=False)


@pytest.mark.parametrize("order", DATAFLOW, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dataflow_order_of_serial_programs(name: str, order: Order) -> None:
    check(name, order, chain=True)


@pytest.mark.parametrize("order", DATAFLOW, ids=str)
@pytest.mark.parametrize("name", SYNCHRONISED)
def test_dataflow_order(name: str, order: Order) -> None:
    check(name, order, chain=False)
