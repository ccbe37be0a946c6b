"""The hand-written programs compute what numpy computes in FP64, in either order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from neuronjax.emulate.core import DataflowOrder, Order, ProgramOrder, run
from neuronjax.lower.sync.synchronise import synchronise
from neuronjax.program.program import Program
from tests.emulate.chain import chained
from tests.emulate.programs import CASES, GOLDEN, assert_close, golden, on_host

DATAFLOW = [DataflowOrder(0), DataflowOrder(1), DataflowOrder(0, adversarial=True)]


def check(name: str, order: Order, change: Callable[[Program], Program] = lambda p: p) -> None:
    case = CASES[name]
    arguments = case.arguments(np.random.default_rng(0))
    program = change(golden(name))
    results = run(program, arguments, order=order, host=on_host)
    assert len(results) == program.ranks
    for each in results:
        assert_close(each, case.expected(arguments), case.tolerance)


def test_every_program_has_a_case() -> None:
    assert CASES.keys() == {path.stem for path in GOLDEN.glob("*.txt")}


@pytest.mark.parametrize("name", CASES)
def test_program_order(name: str) -> None:
    check(name, ProgramOrder())


@pytest.mark.parametrize("order", DATAFLOW, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dataflow_order_of_serial_programs(name: str, order: Order) -> None:
    check(name, order, chained)


@pytest.mark.parametrize("order", DATAFLOW, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_dataflow_order_of_synchronised_programs(name: str, order: Order) -> None:
    """Engines run beside each other, and nothing races."""
    check(name, order, synchronise)
