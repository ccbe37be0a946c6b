"""Tuples are taken apart, whatever they are nested in."""

from __future__ import annotations

from neuronjax.hlo import module as hlo
from neuronjax.hlo.tuples import flatten_tuples

_PAIR = "tuple<tensor<2xf32>, tensor<i32>>"
_NESTED = f"tuple<{_PAIR}, tuple<>, tensor<i8>>"

TEXT = f"""module @tuples {{
  func.func @main(%a: tensor<2xf32>, %n: tensor<i32>) -> (tensor<2xf32>, tensor<i32>, tensor<3xf32>) {{
    %pair = stablehlo.tuple %a, %n : {_PAIR}
    %nested = stablehlo.custom_call @nested(%pair, %n) {{
      xla_shape = "((f32[2], s32[]), (), s8[])"
    }} : ({_PAIR}, tensor<i32>) -> {_NESTED}
    %inner = stablehlo.get_tuple_element %nested[0] : ({_NESTED}) -> {_PAIR}
    %b = stablehlo.get_tuple_element %inner[0] : ({_PAIR}) -> tensor<2xf32>
    %m = stablehlo.get_tuple_element %inner[1] : ({_PAIR}) -> tensor<i32>
    %one = stablehlo.custom_call @one(%b, %inner) {{output_operand_aliases = [
      #stablehlo.output_operand_alias<
        output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>]
    }} : (tensor<2xf32>, {_PAIR}) -> tuple<tensor<2xf32>>
    %c = stablehlo.get_tuple_element %one[0] : (tuple<tensor<2xf32>>) -> tensor<2xf32>
    %effect = stablehlo.custom_call @effect(%c) {{has_side_effect = true}}
      : (tensor<2xf32>) -> tuple<>
    %d = stablehlo.custom_call @plain(%c) : (tensor<2xf32>) -> tensor<3xf32>
    return %c, %m, %d : tensor<2xf32>, tensor<i32>, tensor<3xf32> }} }}"""  # noqa: E501

FLAT = """module @tuples {
  func.func @main(%a: tensor<2xf32>, %n: tensor<i32>) -> (tensor<2xf32>, tensor<i32>, tensor<3xf32>) {
    %nested:3 = stablehlo.custom_call @nested(%a, %n, %n) : (tensor<2xf32>, tensor<i32>, tensor<i32>) -> (tensor<2xf32>, tensor<i32>, tensor<i8>)
    %c = stablehlo.custom_call @one(%nested#0, %nested#0, %nested#1) {output_operand_aliases = [
      #stablehlo.output_operand_alias<
        output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]
    } : (tensor<2xf32>, tensor<2xf32>, tensor<i32>) -> tensor<2xf32>
    stablehlo.custom_call @effect(%c) {has_side_effect = true} : (tensor<2xf32>) -> ()
    %d = stablehlo.custom_call @plain(%c) : (tensor<2xf32>) -> tensor<3xf32>
    return %c, %nested#1, %d : tensor<2xf32>, tensor<i32>, tensor<3xf32> } }"""  # noqa: E501


def test_flat() -> None:
    with hlo.context():
        module = hlo.load(TEXT.encode())
        flatten_tuples(module)
        assert module.operation.verify()
        assert str(module) == str(hlo.load(FLAT.encode()))
