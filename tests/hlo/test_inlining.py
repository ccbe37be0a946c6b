"""Bodies of `shard_map` in place of their calls: values, names and lines."""

from __future__ import annotations

from typing import Any

from neuronjax.hlo import location, module
from neuronjax.hlo.structure import inline_calls
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.jaxlib_api.partitioner_dump import MANUAL_COMPUTATION

PROGRAM = f"""
module {{
  func.func private @{MANUAL_COMPUTATION}.1_spmd(%x: tensor<4xf32>)
      -> (tensor<4xf32>, tensor<4xf32>) {{
    %0 = stablehlo.sine %x : tensor<4xf32> loc("mlp/sin"("inner"("train.py":7:1)))
    %1 = stablehlo.add %0, %x : tensor<4xf32>
    return %1, %x : tensor<4xf32>, tensor<4xf32>
  }}
  func.func private @{MANUAL_COMPUTATION}.2_spmd(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0:2 = call @{MANUAL_COMPUTATION}.1_spmd(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
        loc("attention/shard_map"("middle"("train.py":8:1)))
    %1 = stablehlo.multiply %0#0, %0#1 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }}
  func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = call @{MANUAL_COMPUTATION}.2_spmd(%x) : (tensor<4xf32>) -> tensor<4xf32>
        loc("jit(f)/block/shard_map"("outer"("train.py":9:1)))
    return %0 : tensor<4xf32>
  }}
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = call @other(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @{MANUAL_COMPUTATION}.2_spmd(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }}
}}
"""


def test_a_body_within_a_body_that_is_called_twice() -> None:
    with module.context():
        program = module.load(PROGRAM.encode())
        inline_calls(program, lambda name: name.startswith(MANUAL_COMPUTATION))
        program.operation.verify()
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: list(op.regions[0].blocks[0].operations)
            for op in program.body.operations
        }
        assert {name: [op.name for op in ops] for name, ops in functions.items()} == {
            "other": ["stablehlo.sine", "stablehlo.add", "stablehlo.multiply", "func.return"],
            "main": [
                "func.call", "stablehlo.sine", "stablehlo.add", "stablehlo.multiply", "func.return",
            ],
        }  # fmt: skip
        sine: Any = functions["other"][0].operation
        assert location.scope(sine) == "block/attention/mlp"
        assert [(frame.function, frame.line) for frame in location.frames(sine)] == [
            ("inner", 7), ("middle", 8), ("outer", 9),
        ]  # fmt: skip
