"""The conformance tools themselves: comparisons, and programs made runnable."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from tests.conformance.stablehlo import Result, run_program, table
from tests.conformance.stablehlo_compare import difference, ulp_distance
from tests.conformance.stablehlo_data import Program, make_runnable

REAL_TYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
STARTS = (0.0, -0.0, 1.0, -1.0, 0.99609375, 1e-30, -6e4)

PROGRAM = """
func.func public @main() -> tensor<2xf32> {
  %0 = call @inputs() : () -> tensor<2xf32>
  %1 = call @expected() : () -> tensor<2xf32>
  %2 = stablehlo.add %0, %0 : tensor<2xf32>
  stablehlo.custom_call @check.CHECK(%2, %1) {ATTRIBUTES} : (tensor<2xf32>, tensor<2xf32>) -> ()
  return %2 : tensor<2xf32>
}
func.func private @inputs() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[1.5, -2.0]> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @expected() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[3.0, WANT]> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def array(dtype: str, values: list[Any]) -> np.ndarray:
    return np.array(values, dtype)


def program(check: str = "expect_eq", want: str = "-4.0", attributes: str = "") -> Program:
    text = PROGRAM.replace("CHECK", check).replace("WANT", want)
    attributes = attributes or "has_side_effect = true"
    return Program("add_float32_2_float32_2", text.replace("ATTRIBUTES", attributes))


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 50])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", REAL_TYPES)
def test_ulp_distance_counts_steps_of_nextafter(dtype: type, start: float, steps: int) -> None:
    here: np.ndarray = np.asarray([start]).astype(dtype)
    there = here
    for _ in range(steps):
        there = np.nextafter(there, np.asarray(3e4, dtype))
    assert ulp_distance(here, there) == ulp_distance(there, here) == [steps]


@pytest.mark.parametrize(
    ("check", "got", "want", "good"),
    [
        ("expect_eq", array("float32", [1, np.nan]), array("float32", [1, np.nan]), True),
        ("expect_eq", array("float32", [0.0]), array("float32", [-0.0]), False),
        ("expect_eq", array("float32", [1]), array("float32", [1 + 2**-23]), False),
        ("expect_eq", array("int64", [2**62]), array("int64", [2**62 + 1]), False),
        ("expect_eq", array("int32", [1]), array("int64", [1]), False),
        ("expect_eq", np.zeros((0, 3), bool), np.zeros((0, 3), bool), True),
        ("expect_close", array("float32", [0.0]), array("float32", [-0.0]), True),
        ("expect_close", array("float32", [np.inf]), array("float32", [-np.inf]), False),
        ("expect_close", array("float32", [np.nan]), array("float32", [1]), False),
        ("expect_close", array("complex64", [1 + 2j]), array("complex64", [1 + 2.1j]), False),
        ("expect_close", array("complex128", [1 + 2j]), array("complex128", [1 + 2j]), True),
        ("expect_almost_eq", array("float64", [1.0]), array("float64", [1.001]), True),
        ("expect_almost_eq", array("float64", [1.0]), array("float64", [1.0012]), False),
        ("expect_almost_eq", array("float64", [np.inf]), array("float64", [np.inf]), True),
        ("expect_almost_eq", array("float64", [np.inf]), array("float64", [-np.inf]), False),
        ("expect_almost_eq", array("uint8", [3]), array("uint8", [4]), False),
    ],
)
def test_comparisons(check: str, got: np.ndarray, want: np.ndarray, good: bool) -> None:
    assert (difference(check, got, want) == "") is good


@pytest.mark.parametrize("opaque", [False, True])
def test_a_program_passes_with_the_right_expectation_and_fails_with_a_wrong_one(
    opaque: bool,
) -> None:
    device = jax.devices("cpu")[0]
    assert run_program(device, program(), opaque).error == ""
    wrong = run_program(device, program(want="-4.5"), opaque).error
    assert "[1] got -4.0 want -4.5" in wrong


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (program(check="expect_something"), "found none"),
        (program(attributes="max_ulp_difference = 9 : i64"), "max_ulp_difference"),
    ],
)
def test_programs_that_cannot_be_checked_are_refused(bad: Program, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_runnable(bad)


def test_table_counts_by_operation() -> None:
    results = [Result("add_int8_2", "add", ""), Result("add_int8_3", "add", "expect_eq: 1")]
    lines = table(results).splitlines()
    assert lines[1].split() == ["add", "1", "1"]
    assert lines[-1] == "add_int8_3: expect_eq: 1"
