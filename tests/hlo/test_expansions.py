"""An operation of CHLO is recognised in what XLA makes of it, in modules and in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronjax.engine_compiler import prices_of
from neuronjax.hlo import chlo, graph, module
from neuronjax.hlo.expansions import expansion
from neuronjax.legalize.erfc import erfc_operand
from neuronjax.lower.rates import rates_of
from neuronjax.lower.rewrite.composed import COMPOSED
from neuronjax.lower.rewriter import Context, rewrite
from neuronjax.lower.tuning import DEFAULT
from neuronjax.program.program import Program, Target

TARGET = Target("trainium2")
CONTEXT = Context(
    DEFAULT,
    rates_of(prices_of(Program(name="main", target=TARGET, body=())), 1),
    TARGET.core.tensor,
)

PROGRAM = """
func.func @main(%x: tensor<4xbf16>) -> tensor<4xbf16> {{
  %0 = stablehlo.convert %x : (tensor<4xbf16>) -> tensor<4xf32>
  %1 = chlo.{name} %0 : tensor<4xf32> -> tensor<4xf32>
  %2 = stablehlo.convert %1 : (tensor<4xf32>) -> tensor<4xbf16>
  return %2 : tensor<4xbf16>
}}
"""


def _expanded(name: str, *, is_prepared: bool) -> Any:
    """The expansion as XLA leaves it, or without what it computes twice."""
    loaded = module.load(PROGRAM.format(name=name).encode())
    chlo.expand(loaded, ())
    if is_prepared:
        graph.prepare(loaded)
    return loaded


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize(("name", "is_erfc"), [("erfc", True), ("erf", False)])
def test_erfc(name: str, is_erfc: bool, is_prepared: bool) -> None:
    with module.context():
        loaded = _expanded(name, is_prepared=is_prepared)
        block = module.main_function(loaded).entry_block
        result = block.operations[len(block.operations) - 1].operands[0]
        assert erfc_operand(result) == (block.arguments[0] if is_erfc else None)
        read = graph.read(loaded)
        rewrite(read, COMPOSED, CONTEXT)
        names = [op.name for op in read.operations]
        assert ("chlo.erfc" in names) == is_erfc


def test_an_expansion_of_something_else() -> None:
    """With one number changed, nothing is recognised."""
    numbers = {
        float(op.attributes["value"].flat[0])
        for op in expansion("chlo.erfc").operations
        if op.name == "constant"
    }
    assert len(numbers) > 10
    with module.context():
        loaded = _expanded("erfc", is_prepared=True)
        for number in numbers:
            read = graph.read(loaded)
            changed = [op for op in read.operations if _number(op) == number]
            assert changed
            for op in changed:
                op.attributes["value"] = np.full_like(op.attributes["value"], number + 1)
            rewrite(read, COMPOSED, CONTEXT)
            assert "chlo.erfc" not in [op.name for op in read.operations]


def _number(op: graph.Op) -> float | None:
    return float(op.attributes["value"].flat[0]) if op.name == "constant" else None
