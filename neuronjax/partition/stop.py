"""Ending a compile after the partitioner: a custom call that XLA cannot expand.

Of a compile for partitions only the partitioner's dump is wanted. XLA writes eigenvalues out, which
an extra result of main asks for with parameters that mean nothing, soon after it has partitioned
the program: before it simplifies it again and again, which takes most of the time for large ones.
Did it not fail there, it would when it looks for a handler of the call, before it generates code.
"""

from __future__ import annotations

import numpy as np

from neuronjax.hlo import module as hlo
from neuronjax.hlo.calls import terminator
from neuronjax.hlo.custom_calls import custom_calls
from neuronjax.hlo.structure import set_results
from neuronjax.jaxlib_api.mlir import ir, stablehlo

_TARGET = "Eigh"
_PARAMETERS = "neuronjax_end_of_partitioning"


def insert(module: bytes) -> bytes:
    """The module with the extra result of main, which comes last."""
    with hlo.context():
        parsed = hlo.load(module)
        function = hlo.main_function(parsed)
        end = terminator(function)
        with ir.InsertionPoint(end), ir.Location.unknown():
            zero = stablehlo.constant(ir.DenseElementsAttr.get(np.zeros((1, 1), np.float32)))
            values = ir.RankedTensorType.get([1], ir.F32Type.get())
            call = stablehlo.CustomCallOp(
                [zero.type, values],
                [zero],
                _TARGET,
                backend_config=ir.StringAttr.get(_PARAMETERS),
                api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
            )
        entries = [*hlo.attributes(function, "res_attrs"), {}]
        set_results(function, [*end.operands, call.results[1]], entries)
        return hlo.dump(parsed)


def remove(module: ir.Module) -> None:
    """Takes the extra result out of a partitioned module, in place. Needs its MLIR context."""
    function = hlo.main_function(module)
    entries = hlo.attributes(function, "res_attrs")[:-1]
    set_results(function, list(terminator(function).operands)[:-1], entries)
    for op in custom_calls(module, _TARGET.__eq__):
        if _PARAMETERS in str(op.attributes["backend_config"]):
            op.erase()
    _drop_entry_layouts(module)
    name = "mhlo.spmd_output_sharding"
    if not function.type.results:
        del module.operation.attributes[name]
    elif name in module.operation.attributes:
        text = ir.StringAttr(module.operation.attributes[name]).value
        module.operation.attributes[name] = ir.StringAttr.get(without_last(text))
    name = "mhlo.input_output_alias"
    if len(function.type.results) == 1 and name in module.operation.attributes:
        text = str(module.operation.attributes[name])  # a result alone is no tuple any more
        text = text.replace("output_index = array<i64: 0>", "output_index = array<i64>")
        module.operation.attributes[name] = ir.Attribute.parse(text)


def _drop_entry_layouts(module: ir.Module) -> None:
    """Layouts of main's values still count the extra result, over which XLA would stumble; every
    value is row-major."""
    attributes = module.operation.attributes
    for name in list(attributes):
        if name.startswith("mhlo.xla_entry_computation_"):
            del attributes[name]


def without_last(tuple_text: str) -> str:
    """An HloSharding tuple text without its last entry; of one entry the entry itself."""
    entries: list[str] = []
    depth = start = 0
    for index, char in enumerate(tuple_text):
        if char == "{":
            depth += 1
            start = index if depth == 2 else start
        elif char == "}":
            depth -= 1
            if depth == 1:
                entries.append(tuple_text[start : index + 1])
    kept = entries[:-1]
    return kept[0] if len(kept) == 1 else "{" + ", ".join(kept) + "}"
