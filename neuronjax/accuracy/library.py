"""Code that is kept outside a program while the program is rewritten, and inserted afterwards.

The ops that watch a program must not get the chip's numerics themselves. They are functions of a
separate module, and the program has a custom call for every use of them until ``expand``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuronjax.hlo.custom_calls import custom_calls
from neuronjax.hlo.structure import inline
from neuronjax.jaxlib_api.mlir import func, ir, stablehlo

_TARGET = "neuronjax_library"

Build = Callable[[list[Any]], Sequence[Any]]
"""Arguments of a function -> its results; writes ops at the current insertion point."""


class Library:
    """Functions by name. Needs the program's MLIR context to be current."""

    def __init__(self) -> None:
        with ir.Location.unknown():
            self._module = ir.Module.create()
        self._functions: dict[str, Any] = {}

    def call(self, name: str, operands: Sequence[Any], build: Build) -> list[Any]:
        """Calls function ``name`` on ``operands`` at the current insertion point and location.

        The first call defines the function by ``build``.
        """
        if name not in self._functions:
            self._functions[name] = self._write(name, [operand.type for operand in operands], build)
        results = self._functions[name].type.results
        call = stablehlo.CustomCallOp(results, list(operands), _TARGET)
        call.operation.attributes["function"] = ir.StringAttr.get(name)
        return list(call.operation.results)

    def _write(self, name: str, types: list[ir.Type], build: Build) -> Any:
        with ir.InsertionPoint(self._module.body), ir.Location.unknown():
            function = func.FuncOp(name, (types, []))
            block = function.add_entry_block()
            with ir.InsertionPoint(block):
                results = list(build(list(block.arguments)))
                func.ReturnOp(results)
        signature = ir.FunctionType.get(types, [result.type for result in results])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        return function

    def expand(self, module: ir.Module) -> None:
        """Replaces the uses in ``module`` by the functions' ops."""
        for call in custom_calls(module, _TARGET.__eq__):
            name = ir.StringAttr(call.attributes["function"]).value
            inline(call, self._functions[name])
