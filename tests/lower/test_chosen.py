"""Products with weights that indices choose: values, and the time of the bytes that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.machine.chips import CHIPS
from neuronjax.program.dma import DmaGather
from neuronjax.program.operand import Kind
from neuronjax.program.program import Program
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions
from neuronjax.timing.roofline import roofline
from neuronjax.timing.schedule import schedule
from tests.lower.differential import (
    SUM,
    Tolerance,
    assert_close,
    check,
    completed,
    emulated,
    lowered,
    on_cpu,
    orders,
    sent,
)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


def places(*numbers: int, dtype: Any = np.int32) -> np.ndarray:
    return np.array(numbers, dtype)


def experts(weights: Any, x: Any, expert: Any) -> Any:
    return jnp.einsum("mcd,mdf->mcf", x, weights[expert])


def adapters(down: Any, up: Any, x: Any, adapter: Any) -> Any:
    return jnp.einsum("bd,bdr,bro->bo", x, down[adapter], up[adapter])


def one(weights: Any, x: Any, index: Any) -> Any:
    return jax.nn.silu(x @ jax.lax.dynamic_index_in_dim(weights, index, 0, keepdims=False))


def part(weights: Any, x: Any, row: Any, column: Any) -> Any:
    return x @ jax.lax.dynamic_slice(weights, (row, column), (256, 128))


def along_a_chain(weights: Any, x: Any, order: Any) -> Any:
    return jax.lax.scan(lambda carry, at: (jnp.tanh(carry @ weights[at] / 16), None), x, order)[0]


def overwritten(weights: Any, x: Any, index: Any) -> tuple[Any, Any]:
    """The weights of an index, which are then replaced."""
    product = x @ jax.lax.dynamic_index_in_dim(weights, index, 0, keepdims=False)
    new = jnp.ones_like(weights[:1])
    return product, jax.lax.dynamic_update_slice(weights, new, (index, 0, 0))


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "experts": (experts, (numbers(5, 128, 160), numbers(3, 2, 128), places(4, 0, 4))),
    "experts, out of range": (experts, (numbers(5, 128, 160), numbers(2, 1, 128), places(9, -7))),
    "experts in bfloat16": (
        experts, (numbers(3, 128, 256, dtype=jnp.bfloat16), numbers(2, 1, 128, dtype=jnp.bfloat16),
                  places(2, 1))),
    "experts by unsigned numbers": (
        experts, (numbers(5, 128, 160), numbers(2, 1, 128), places(1, 4, dtype=np.uint32))),
    "adapters": (
        adapters, (numbers(6, 512, 32), numbers(6, 32, 512), numbers(3, 512), places(1, 5, 1))),
    "one of a stack": (one, (numbers(4, 128, 256), numbers(3, 128), np.int32(2))),
    "one of a stack, beyond its end": (one, (numbers(4, 128, 256), numbers(3, 128), np.int32(7))),
    "a part of two dimensions": (
        part, (numbers(512, 512), numbers(4, 256), np.int32(100), np.int32(300))),
    "layers in an order": (
        along_a_chain, (numbers(4, 128, 128), numbers(2, 128), places(3, 1, 1, 0, 2))),
    "weights that are replaced": (
        overwritten, (numbers(4, 128, 256), numbers(3, 128), np.int32(2))),
}  # fmt: skip
"""Programs, and arguments that they choose weights with."""


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_chosen_weights(name: str) -> None:
    function, arguments = CASES[name]
    dtype = arguments[0].dtype
    tolerance = SUM if dtype == np.float32 else Tolerance(relative=1e-5, roundings=1)
    program = check(function, *arguments, tolerance=tolerance)
    assert verify(program) == ()
    assert not _copies(program, arguments[0].nbytes)


@pytest.mark.parametrize("name", ["experts", "one of a stack", "adapters"])
def test_two_cores_give_what_one_gives(name: str) -> None:
    function, arguments = CASES[name]
    code = sent(jax.jit(function).trace(*arguments))
    written = lowered(code, lnc=2)
    program = completed(written, None)
    wanted = on_cpu(code, arguments)
    for order in orders(2):
        (found,) = emulated(program, code, [arguments], order=order)
        for got, want in zip(found, wanted, strict=True):
            assert_close(got, want, SUM)


def _copies(program: Program, nbytes: int) -> bool:
    """Whether what was chosen is written to HBM before it is multiplied."""
    scratch = sum(b.slot_bytes for b in program.buffers if b.kind is Kind.SCRATCH)
    rows = any(isinstance(i, DmaGather) for _, i in instructions(program))
    return rows or scratch >= nbytes


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


NUMBER = shape(dtype=np.int32)
LARGE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "experts": (
        experts, (shape(8, 4096, 4096), shape(4, 1, 4096), shape(4, dtype=np.int32)),
        4 * 4096 * 4096 * 2),
    "one of a stack": (
        one, (shape(4, 8192, 8192), shape(1, 8192), NUMBER), 8192 * 8192 * 2),
    "a part of a stack": (
        lambda w, x, i: x @ jax.lax.dynamic_slice(w, (i, 0), (4096, 8192)),
        (shape(8192, 8192), shape(1, 4096), NUMBER), 4096 * 8192 * 2),
    "all experts, chosen by zeros and ones": (
        lambda w, x, e: jnp.einsum("md,me,edf->mf", x, jax.nn.one_hot(e, 8, dtype=w.dtype), w),
        (shape(8, 4096, 2048), shape(2, 4096), shape(2, dtype=np.int32)), 8 * 4096 * 2048 * 2),
    "layers": (
        lambda w, x: jax.lax.scan(lambda c, k: (jnp.tanh(c @ k), None), x, w)[0],
        (shape(8, 4096, 4096), shape(1, 4096)), 8 * 4096 * 4096 * 2),
    "windows as they are": (
        lambda w, i: w[i], (shape(8, 4096, 4096), shape(2, dtype=np.int32)),
        2 * 2 * 4096 * 4096 * 2),
}  # fmt: skip
"""Programs whose weights are most of what they move, and the bytes that they must move."""

MOST = 1.5
"""A program's time over that of its bytes at the full bandwidth, at most."""


@pytest.mark.parametrize(("chip", "lnc"), [("trainium1", 1), ("trainium2", 2), ("trainium3", 2)])
@pytest.mark.parametrize("name", LARGE)
def test_a_program_takes_the_time_of_the_bytes_it_needs(name: str, chip: str, lnc: int) -> None:
    function, arguments, nbytes = LARGE[name]
    code = sent(jax.jit(function).trace(*arguments), numerics="chip")
    program = lowered(code, chip=chip, lnc=lnc)
    program = completed(program, verify_passes=False)
    timeline = schedule(program)
    dma = CHIPS[chip].core.dma
    least_ns = nbytes / (lnc * dma.engines * dma.engine_bandwidth / 1e9)
    assert timeline.total_ns - timeline.launch_ns <= MOST * least_ns
    for resource, bound in roofline(program).bounds_ns.items():
        assert bound <= timeline.total_ns - timeline.launch_ns, resource
