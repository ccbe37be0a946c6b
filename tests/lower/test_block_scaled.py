"""Products of MX blocks as JAX writes them: one instruction for 32 elements and their scale."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax
from neuronjax.program.program import Program
from neuronjax.program.tensor_engine import Matmul, MatmulMX
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from neuronjax.timing.schedule import schedule
from tests.lower.differential import (
    CHIP,
    SUM,
    assert_close,
    completed,
    emulated,
    lowered,
    sent,
)

MX_CHIP = "trainium3"
E4M3, E5M2, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu
RNG = np.random.default_rng(4)

Multiply = Callable[..., Any]


def elements(*shape: int, dtype: Any = E4M3) -> np.ndarray:
    return RNG.normal(scale=8, size=shape).astype(dtype)


def scales(*shape: int) -> np.ndarray:
    return RNG.integers(120, 134, shape).astype(np.uint8).view(E8M0)


def operands(batch: int, rows: int, columns: int, depth: int, dtype: Any = E4M3) -> tuple[Any, ...]:
    return (
        elements(batch, rows, depth, dtype=dtype), elements(batch, columns, depth, dtype=dtype),
        scales(batch, rows, depth // 32), scales(batch, columns, depth // 32),
    )  # fmt: skip


def scaled_matmul(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    return jax.nn.scaled_matmul(a, b, a_scale, b_scale, preferred_element_type=jnp.float32)


def by_hand(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    """The product of the numbers that blocks stand for."""

    def numbers(x: Any, scale: Any) -> Any:
        blocks = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 32)
        return (blocks * scale.astype(jnp.float32)[..., None]).reshape(x.shape)

    left, right = numbers(a, a_scale), numbers(b, b_scale)
    return jnp.einsum("bik,bjk->bij", left, right, precision="highest")


def layers(multiply: Multiply, a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    """A loop, each round of which has weights of its own."""

    def layer(total: Any, weight: Any) -> Any:
        values, scale = weight
        made = multiply(a[:1], values[None], a_scale[:1], scale[None])
        return total + jax.nn.relu(made), None

    start = jnp.zeros((1, a.shape[1], b.shape[1]), jnp.float32)
    return jax.lax.scan(layer, start, (b, b_scale))[0]


def plain(multiply: Multiply, *given: Any) -> Any:
    return multiply(*given)


def doubled(multiply: Multiply, a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    """Scales of another meaning: twice those of MX."""
    return by_hand(a, b, a_scale, b_scale.astype(jnp.float32) * 2)


def with_odd_codes() -> tuple[Any, ...]:
    """Small scales, scales that are NaN, and elements that are NaN."""
    a, b, a_scale, b_scale = operands(1, 64, 48, 256)
    a_scale.view(np.uint8)[0, 3:6, 2], b_scale.view(np.uint8)[0, :, :] = 2, 190
    a_scale.view(np.uint8)[0, 9, 1], a[0, 20, 5] = 255, np.nan
    return a, b, a_scale, b_scale


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "scaled_matmul": (plain, operands(1, 256, 384, 512), True),
    "e5m2": (plain, operands(1, 64, 96, 256, E5M2), True),
    "a batch, and remainders": (plain, operands(3, 130, 34, 384), True),
    "few rows, many columns": (plain, operands(1, 2, 700, 1152), True),
    "written by hand": (lambda _, *given: by_hand(*given), operands(1, 40, 600, 640), True),
    "odd codes": (plain, with_odd_codes(), True),
    "what follows": (
        lambda multiply, *given: jax.nn.gelu(multiply(*given) * 0.01), operands(1, 128, 128, 256),
        True),
    "in a loop": (layers, operands(3, 32, 64, 256), True),
    "elements that are computed": (
        lambda multiply, a, *others: multiply(-a, *others), operands(1, 32, 64, 256), True),
    "odd rows": (plain, operands(1, 33, 64, 256), False),
    "a part of a quadrant": (plain, operands(1, 32, 64, 96), False),
    "scales of another meaning": (doubled, operands(1, 32, 64, 256), False),
}  # fmt: skip
"""Functions of a product and its operands, and whether blocks are multiplied."""


def compared(function: Callable[..., Any], arguments: tuple[Any, ...], chip: str) -> Program:
    """The program of a function, which gives on engines what its numbers give on the CPU."""
    code = sent(jax.jit(partial(function, scaled_matmul), keep_unused=True).trace(*arguments))
    program = lowered(code, chip=chip)
    (found,) = emulated(program, code, [arguments])
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.jit(partial(function, by_hand))(*arguments)
    assert_close(found[0], np.asarray(wanted), SUM)
    return program


def mnemonics(program: Program) -> set[str]:
    return {
        instruction.mnemonic
        for _, instruction in instructions(program)
        if isinstance(instruction, Matmul | MatmulMX)
    }


@pytest.mark.parametrize("name", CASES)
def test_blocks_give_what_their_numbers_give(name: str) -> None:
    function, arguments, is_scaled = CASES[name]
    program = compared(function, arguments, MX_CHIP)
    assert verify(program) == ()
    assert mnemonics(program) == {"nc_matmul_mx" if is_scaled else "nc_matmul"}


def test_chips_without_mx_multiply_the_numbers() -> None:
    program = compared(plain, operands(1, 32, 64, 256), CHIP)
    assert mnemonics(program) == {"nc_matmul"}


def test_quantized_operands() -> None:
    """What `jax.nn.scaled_dot_general` makes of BF16 has three digits, two of each element."""
    config = jax.nn.get_scaled_dot_general_config("mxfp8")

    def product(x: Any, y: Any) -> Any:
        return jax.nn.scaled_dot_general(
            x, y, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32,
            configs=[config] * 3,
        )  # fmt: skip

    given = [RNG.normal(size=(2, rows, 256)).astype(jnp.bfloat16) for rows in (64, 96)]
    code = sent(jax.jit(product).trace(*given))
    program = lowered(code, chip=MX_CHIP)
    ((found,),) = emulated(program, code, [given])
    wanted = np.einsum("bik,bjk->bij", *(x.astype(np.float64) for x in given))
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    assert mnemonics(program) == {"nc_matmul_mx"}


def test_custom_calls_multiply_words() -> None:
    """The calls of Neuron's compiler: words that `QuantizeMX` packs are not taken apart again."""
    given = [RNG.normal(size=(rows, 256)).astype(jnp.bfloat16) for rows in (64, 96)]
    shape = jax.ShapeDtypeStruct

    def call(target: str, results: Any, config: Any, *operands: Any) -> Any:
        made = jax.ffi.ffi_call(
            target, results, custom_call_api_version=2, legacy_backend_config=json.dumps(config)
        )
        return made(*operands)

    def quantized(x: Any) -> Any:
        rows, depth = x.shape
        results = shape((rows, depth // 4), jnp.uint32), shape((rows, depth // 32), jnp.uint8)
        return call("QuantizeMX", results, {"dtype": "float8_e4m3fn", "dim": -1}, x)

    def product(x: Any, y: Any) -> Any:
        (a, a_scale), (b, b_scale) = quantized(x), quantized(y)
        config = {"scaled_dot_backend_config": {"element_dtype": "float8_e4m3fn"}}
        result = shape((x.shape[0], y.shape[0]), jnp.float32)
        return call("ScaledMatmul", result, config, a, b, a_scale, b_scale)

    estimate = neuronjax.estimate(
        product, *(shape(x.shape, x.dtype) for x in given), target="trn3-gen1-ultraserver"
    )
    assert ("block_scaled_product",) in [kernel.operations for kernel in estimate.kernels]


def test_blocks_are_four_times_as_fast_as_bf16() -> None:
    """AWS states four times the FLOP/s of BF16 for MXFP8 on Trn3; the rest moves operands."""

    def time_ns(function: Any, *shapes: Any) -> float:
        program = lowered(sent(jax.jit(function).trace(*shapes)), chip=MX_CHIP)
        timeline = schedule(completed(program, verify_passes=False))
        return timeline.total_ns - timeline.launch_ns

    size = 4096
    narrow = jax.ShapeDtypeStruct((1, size, size), E4M3)
    scale = jax.ShapeDtypeStruct((1, size, size // 32), E8M0)
    wide = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)

    def scaled(*given: Any) -> Any:
        return scaled_matmul(*given).astype(jnp.bfloat16)

    ratio = time_ns(jnp.matmul, wide, wide) / time_ns(scaled, narrow, narrow, scale, scale)
    assert 2.5 <= ratio <= 4.05
