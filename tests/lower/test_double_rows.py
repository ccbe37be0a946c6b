"""Products of FP8: two contracted elements in each row of the array, on chips that have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.operators import PerformanceMode
from neuronjax.program.program import Program
from neuronjax.program.tensor_engine import Matmul
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from neuronjax.timing.schedule import schedule
from tests.lower.differential import SUM, check, completed, lowered, sent

E4M3, E5M2 = jnp.float8_e4m3, jnp.float8_e5m2


def numbers(*shape: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(2).normal(size=shape).astype(dtype)


def dot(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def rows_with_rows(x: Any, y: Any) -> Any:
    return jax.lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def convolution(x: Any, kernel: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=numbers, preferred_element_type=jnp.float32
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], bool]] = {
    "e4m3": (dot, (numbers(40, 512, dtype=E4M3), numbers(512, 200, dtype=E4M3)), True),
    "e5m2 with e4m3": (dot, (numbers(40, 512, dtype=E5M2), numbers(512, 200, dtype=E4M3)), True),
    "rows with rows": (
        rows_with_rows, (numbers(130, 1024, dtype=E4M3), numbers(70, 1024, dtype=E4M3)), True),
    "with a bias, and what follows": (
        lambda x, y, b: jax.nn.relu(dot(x, y) + b),
        (numbers(33, 256, dtype=E4M3), numbers(256, 64, dtype=E4M3), numbers(64, dtype=np.float32)),
        True),
    "a batch": (
        lambda x, y: jnp.einsum("bik,bkj->bij", x, y, preferred_element_type=jnp.float32),
        (numbers(3, 20, 256, dtype=E4M3), numbers(3, 256, 30, dtype=E4M3)), True),
    "three chunks of contracted elements": (
        dot, (numbers(10, 384, dtype=E4M3), numbers(384, 20, dtype=E4M3)), False),
    "one row of the array for each": (
        dot, (numbers(10, 100, dtype=E4M3), numbers(100, 20, dtype=E4M3)), False),
    "fp8 with bf16": (
        dot, (numbers(40, 512, dtype=E4M3), numbers(512, 20, dtype=jnp.bfloat16)), False),
    "a convolution": (
        convolution, (numbers(1, 6, 6, 256, dtype=E4M3), numbers(3, 3, 256, 16, dtype=E4M3)), True),
}  # fmt: skip
"""Functions, and whether two elements share a row."""


def modes(program: Program) -> set[PerformanceMode]:
    return {i.perf_mode for _, i in instructions(program) if isinstance(i, Matmul)}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_formats(name: str) -> None:
    function, arguments, doubles = CASES[name]
    program = check(function, *arguments, tolerance=SUM)
    assert verify(program) == ()
    assert (PerformanceMode.DOUBLE_ROW in modes(program)) == doubles


@pytest.mark.parametrize(
    ("chip", "dtype", "least"),
    [("trainium2", E4M3, 1.7), ("trainium3", E4M3, 1.7), ("trainium3", jnp.float8_e4m3fn, 1.7),
     ("trainium1", E4M3, 1.0)],
)  # fmt: skip
def test_fp8_takes_half_of_the_time_where_rows_are_double(
    chip: str, dtype: Any, least: float
) -> None:
    """2048 x 2048 x 2048 takes little but products."""

    def time_ns(dtype: Any) -> float:
        operand = jax.ShapeDtypeStruct((2048, 2048), dtype)

        def narrow(x: Any, y: Any) -> Any:
            return dot(x, y).astype(jnp.bfloat16)

        code = sent(jax.jit(narrow).trace(operand, operand), numerics="chip")
        program = lowered(code, chip=chip)
        program = completed(program, verify_passes=False)
        timeline = schedule(program)
        return timeline.total_ns - timeline.launch_ns

    ratio = time_ns(jnp.bfloat16) / time_ns(dtype)
    assert least - 0.02 <= ratio <= (2.05 if least > 1 else 1.1)
