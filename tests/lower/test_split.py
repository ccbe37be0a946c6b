"""Kernels on the two physical cores of a logical one: the very bytes that one core writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax.emulate.core import DataflowOrder, Order
from neuronjax.engine_compiler import prices_of
from neuronjax.formats import FORMATS
from neuronjax.lower.cores.split import split
from neuronjax.program.affine import affine
from neuronjax.program.dma import DmaCopy
from neuronjax.program.operand import Access, Buffer, Dim, Memory
from neuronjax.program.operators import AluOp
from neuronjax.program.program import Kernel, Loop, Node, Program, Split, Target
from neuronjax.program.text import format, parse
from neuronjax.program.vector_engine import TensorCopy, TensorTensor
from neuronjax.program.verify import verify
from neuronjax.program.walk import kernels, walk
from neuronjax.timing.schedule import schedule
from tests.lower.differential import (
    CHIP,
    EXACT,
    FUNCTION,
    SUM,
    Tolerance,
    assert_close,
    completed,
    emulated,
    lowered,
    on_cpu,
    sent,
)
from tests.lower.nests import accesses, programs
from tests.lower.unrolled import Byte, steps, touched

RNG = np.random.default_rng(0)
ORDERS: tuple[Order | None, ...] = (
    None, DataflowOrder(0), DataflowOrder(1), DataflowOrder(0, adversarial=True),
)  # fmt: skip


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def indices(most: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, most, shape).astype(np.int32)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(0.125 * q @ k.swapaxes(-1, -2)) @ v


def _weight_gradient(
    layouts: tuple[str, str, str], stride: int, kernel: tuple[int, ...]
) -> Callable[..., Any]:
    """Of a convolution, from its input and what the result's gradient is."""

    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=layouts
        )

    return lambda x, y: jax.vjp(lambda w: convolved(x, w), jnp.zeros(kernel))[1](y)


def _scan(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0]


def _convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _projections(x: jax.Array, q: jax.Array, k: jax.Array, scale: jax.Array) -> Any:
    """Two that come alike, neither of which needs the other."""

    def normed(y: jax.Array) -> jax.Array:
        return y.reshape(2, 32) / jnp.sqrt(jnp.sum(y * y)) * scale.reshape(2, 32)

    return normed(x @ q), normed(x @ k)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Tolerance]] = {
    "product": (jnp.matmul, (normal(512, 256), normal(256, 1024)), SUM),
    "product with remainders": (jnp.matmul, (normal(300, 200), normal(200, 700)), SUM),
    "softmax": (jax.nn.softmax, (normal(1024, 2000),), SUM),
    "sums of columns": (lambda x: x.sum(0), (normal(600, 3000),), SUM),
    "sums that share loads": (lambda x: x.sum(0), (normal(4928, 1376),), SUM),
    "sums of rows": (lambda x: x.sum(1), (normal(600, 300),), SUM),
    "elementwise": (jnp.tanh, (normal(600, 3000),), FUNCTION),
    "convolution": (_convolution, (normal(4, 16, 16, 32), normal(3, 3, 32, 64)), SUM),
    "product of few columns": (
        lambda x, y: x.T @ y + 1, (normal(16_384, 8), normal(16_384, 24)), SUM,
    ),
    "product over two dimensions": (
        lambda x, y: jnp.einsum("abm,nab->mn", x, y), (normal(3, 6000, 8), normal(24, 3, 6000)),
        SUM,
    ),
    "gradient of weights": (
        _weight_gradient(("NHWC", "HWIO", "NHWC"), 1, (3, 3, 3, 8)),
        (normal(1, 128, 131, 3), normal(1, 128, 131, 8)), SUM,
    ),
    "gradient of weights, features first": (
        _weight_gradient(("NCHW", "OIHW", "NCHW"), 2, (8, 3, 3, 3)),
        (normal(6, 3, 196, 101), normal(6, 8, 98, 51)), SUM,
    ),
    "attention": (_attention, tuple(normal(4, 256, 64) for _ in range(3)), SUM),
    "scan": (_scan, (normal(3, 256, 256) / 16, normal(256, 256)), SUM),
    "gather": (lambda t, i: t[i], (normal(1000, 64), indices(1000, 700)), EXACT),
    "scatter": (
        lambda t, i, u: t.at[i].add(u),
        (normal(1000, 64), indices(1000, 700), normal(700, 64)), SUM,
    ),
    "transpose": (lambda x: x.T, (normal(1000, 600),), EXACT),
    "slice": (
        lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (128, 256)),
        (normal(512, 256), np.asarray(77, np.int32)), EXACT,
    ),
}  # fmt: skip
"""Functions, of which at least one kernel comes apart."""


def splits(program: Program) -> list[Split]:
    return [node for _, node in walk(program) if isinstance(node, Split)]


def _on_one_and_two(code: bytes, prices: Any = None) -> tuple[Program, Program]:
    """The same kernels on one core and on two, which share even what gains little if no `prices`
    are known."""
    written = lowered(code, lnc=2)
    one = completed(dataclasses.replace(written, target=Target(CHIP, 1)))
    two = completed(written, prices)
    assert splits(one) == []
    return one, two


@pytest.mark.parametrize("name", CASES)
def test_two_cores_give_what_one_gives(name: str) -> None:
    """Close to XLA:CPU, and in any order the same bits as on one core, without a race."""
    function, arguments, tolerance = CASES[name]
    code = sent(jax.jit(function).trace(*arguments))
    one, two = _on_one_and_two(code)
    assert splits(two) != []
    assert verify(two) == ()
    assert parse(format(two)) == two
    (alone,) = emulated(one, code, [arguments])
    for got, want in zip(alone, on_cpu(code, arguments), strict=True):
        assert_close(got, want, tolerance)
    for order in ORDERS:
        (found,) = emulated(two, code, [arguments], order=order)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in alone], order


def test_neighbours_run_beside_each_other() -> None:
    """Kernels too small to be shared, neither of which needs the other."""
    arguments = (normal(1, 512), normal(512, 64), normal(512, 64), normal(64))
    code = sent(jax.jit(_projections).trace(*arguments))
    one, two = _on_one_and_two(code, prices_of)
    (pair,) = splits(two)
    assert [kernel.parts for kernel in pair.kernels] == [pair.kernels[0].parts] * 2
    (alone,) = emulated(one, code, [arguments])
    for got, want in zip(alone, on_cpu(code, arguments), strict=True):
        assert_close(got, want, SUM)
    for order in ORDERS:
        (seen,) = emulated(two, code, [arguments], order=order)
        assert [value.tobytes() for value in seen] == [value.tobytes() for value in alone], order
    times = [schedule(program).total_ns for program in (one, two)]
    assert times[1] < times[0]


# Random kernels


def _sequences(nodes: tuple[Node, ...], *, reverse: bool) -> Iterator[Kernel]:
    """Kernels in order; those beside each other in either."""
    for node in nodes:
        if isinstance(node, Split):
            yield from reversed(node.kernels) if reverse else node.kernels
        else:
            assert isinstance(node, Kernel)
            yield node


def left_in_hbm(program: Program, *, reverse: bool = False) -> dict[Byte, int]:
    """What each byte of HBM holds in the end: a number for all that it was made of."""
    hbm: dict[Byte, int] = {}
    for kernel in _sequences(program.body, reverse=reverse):
        memory: dict[Byte, int] = {}
        for step in steps(kernel):
            uses = [(use.role, use.operand) for use in step.instruction.uses()]
            accesses = [(role, each) for role, each in uses if isinstance(each, Access)]
            read = tuple(
                (memory if access.buffer.on_chip else hbm).get(byte, 0)
                for role, access in accesses
                if role.is_read
                for _, byte in sorted(touched(access, step.values))
            )
            for role, access in accesses:
                if role.is_write:
                    target = memory if access.buffer.on_chip else hbm
                    for number, (_, byte) in enumerate(sorted(touched(access, step.values))):
                        target[byte] = hash((step.instruction.mnemonic, number, read))
    return hbm


X, Y = (
    Buffer(name=name, memory=Memory.HBM, dtype=FORMATS["float32"], shape=(4096,)) for name in "xy"
)


@st.composite
def instructions(draw: st.DrawFn, tiles: list[Buffer], trips: dict[str, int], at: int) -> Node:
    """A load, a copy between tiles, or a store, which seldom meets those of other nodes."""

    def tile() -> Access:
        return draw(accesses(draw(st.sampled_from(tiles)), trips))

    kind = draw(st.sampled_from(("load", "load", "copy", "add", "store", "store")))
    if kind == "copy":
        return TensorCopy(dst=tile(), src=tile())
    if kind == "add":
        return TensorTensor(dst=tile(), data1=tile(), data2=tile(), op=AluOp.ADD)
    steps = {name: draw(st.sampled_from((8, 8, 16, 0 if at % 3 else 8))) for name in trips}
    if len(steps) > 1 and draw(st.integers(0, 3)):
        steps[next(iter(steps))] = 64
    elements = Access(
        buffer=draw(st.sampled_from((X, X, X, Y))) if kind == "load" else Y,
        offset=affine(512 * at + draw(st.sampled_from((0, 0, 0, 4))), **steps),
        dims=(Dim(1, draw(st.integers(1, 8))),),
    )
    return (
        DmaCopy(dst=tile(), src=elements) if kind == "load" else DmaCopy(dst=elements, src=tile())
    )


@st.composite
def nests(draw: st.DrawFn) -> Program:
    """A kernel of a few loops and instructions, that may well come apart."""
    tiles = [
        Buffer(
            name=name, memory=Memory.SBUF, dtype=FORMATS["float32"], shape=(2, 4),
            slots=draw(st.sampled_from((1, 2))),
        )
        for name in ("a", "b", "c", "d")
    ]  # fmt: skip

    def nodes(trips: dict[str, int], at: int, most: int) -> tuple[Node, ...]:
        found: list[Node] = []
        for number in range(draw(st.integers(1, most))):
            place = at or number + 1
            if len(trips) < 2 and draw(st.integers(0, 2 + len(trips))) < 2:
                name, count = "ij"[len(trips)], draw(st.integers(2, 5))
                body = nodes({**trips, name: count}, place, 4)
                found.append(Loop(variable=name, trips=count, body=body))
            else:
                found.append(draw(instructions(tiles, trips, place)))
        return tuple(found)

    kernel = Kernel(name="random", body=nodes({}, 0, 4), buffers=tuple(tiles))
    return Program(name="random", target=Target(CHIP, 2), body=(kernel,), buffers=(X, Y))


def leaves_the_same(program: Program) -> bool:
    """Asserts that a split program does what it did, whichever core is first."""
    found = split(program)
    expected = left_in_hbm(program)
    assert left_in_hbm(found) == expected
    assert left_in_hbm(found, reverse=True) == expected
    return bool(splits(found))


@pytest.mark.parametrize("examples", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_random_kernels_leave_the_same_in_hbm(examples: int) -> None:
    """Bytes of a tile that nothing has written are 0 everywhere."""
    apart: list[bool] = []

    @given(nests())
    @settings(max_examples=examples, deadline=None, derandomize=True)
    def check(program: Program) -> None:
        apart.append(leaves_the_same(program))

    check()
    assert any(apart)


@given(programs(addressed=False))
@settings(max_examples=100, deadline=None)
def test_wild_kernels_leave_the_same_in_hbm(program: Program) -> None:
    """Slots and partitions in HBM, collectives, overwritten predicates."""
    leaves_the_same(dataclasses.replace(program, target=Target(CHIP, 2)))


# What stays on one core

STAYS = {
    "a sum over iterations": """
      sbuf %a : float32[1, 8]
      sbuf %t : float32[1, 8] slots 2
      memset dst=%a[0; 1:8] value=#0
      loop i in 8 {
        dma_copy dst=%t{i}[0; 1:8] src=%x[1024*i; 1:8]
        tensor_tensor dst=%a[0; 1:8] data1=%a[0; 1:8] data2=%t{i}[0; 1:8] op=add
      }
      dma_copy dst=%y[0; 1:8] src=%a[0; 1:8]""",
    "what the last iteration leaves": """
      sbuf %t : float32[1, 8]
      loop i in 8 {
        dma_copy dst=%t[0; 1:8] src=%x[1024*i; 1:8]
        dma_copy dst=%y[1024*i; 1:8] src=%t[0; 1:8]
      }
      dma_copy dst=%y[0; 1:8] src=%t[0; 1:8]""",
    "iterations that overwrite each other": """
      sbuf %t : float32[1, 8] slots 2
      loop i in 8 {
        dma_copy dst=%t{i}[0; 1:8] src=%x[1024*i; 1:8]
        dma_copy dst=%y[4*i; 1:8] src=%t{i}[0; 1:8]
      }""",
    "iterations that read what others wrote": """
      sbuf %t : float32[1, 8] slots 2
      loop i in 7 {
        dma_copy dst=%t{i}[0; 1:8] src=%y[1024*i; 1:8]
        dma_copy dst=%y[1024*i + 1024; 1:8] src=%t{i}[0; 1:8]
      }""",
    "random numbers": """
      sbuf %t : float32[1, 8] slots 2
      loop i in 8 {
        rng dst=%t{i}[0; 1:8]
        dma_copy dst=%y[1024*i; 1:8] src=%t{i}[0; 1:8]
      }""",
    "the first iteration": """
      sbuf %t : float32[1, 8] slots 2
      psum %p : float32[1, 8] slots 2
      loop i in 8 {
        dma_copy dst=%t{i}[0; 1:8] src=%x[1024*i; 1:8]
        nc_matmul dst=%p{i}[0; 1:8] stationary=%t{i}[0; 1:1] moving=%t{i}[0; 1:8] start=first(i)
        tensor_copy dst=%t{i}[0; 1:8] src=%p{i}[0; 1:8]
        dma_copy dst=%y[1024*i; 1:8] src=%t{i}[0; 1:8]
      }""",
}


def program(body: str, lnc: int = 2) -> Program:
    return parse(
        f'program "p" target trainium2 lnc {lnc} {{\nhbm %x : float32[64, 128] argument\n'
        f'hbm %y : float32[64, 128] result\nkernel "k" {{ {body} }} }}'
    )


@pytest.mark.parametrize("name", STAYS)
def test_on_one_core(name: str) -> None:
    whole = program(STAYS[name])
    assert split(whole) == whole


LOOP = """
      sbuf %g : float32[1, 8]
      sbuf %t : float32[1, 8] slots 3
      dma_copy dst=%g[0; 1:8] src=%x[0; 1:8]
      loop i in 7 {
        dma_copy dst=%t{i}[0; 1:8] src=%x[1024*i; 1:8]
        tensor_tensor dst=%t{i}[0; 1:8] data1=%t{i}[0; 1:8] data2=%g[0; 1:8] op=multiply
        dma_copy dst=%y[1024*i; 1:8] src=%t{i}[0; 1:8]
      }
"""
HALVES = """\
program "p" target trainium2 lnc 2 {
  hbm %x : float32[64, 128] argument
  hbm %y : float32[64, 128] result
  split "k" {
    kernel "k core 0" {
      sbuf %g : float32[1, 8]
      sbuf %t : float32[1, 8] slots 3
      dma_copy dst=%g[0; 1:8] src=%x[0; 1:8]
      loop i in 4 {
        dma_copy dst=%t{i}[0; 1:8] src=%x[1024*i; 1:8]
        tensor_tensor dst=%t{i}[0; 1:8] data1=%t{i}[0; 1:8] data2=%g[0; 1:8] op=multiply
        dma_copy dst=%y[1024*i; 1:8] src=%t{i}[0; 1:8]
      }
    }
    kernel "k core 1" {
      sbuf %g : float32[1, 8]
      sbuf %t : float32[1, 8] slots 3
      dma_copy dst=%g[0; 1:8] src=%x[0; 1:8]
      loop i in 3 {
        dma_copy dst=%t{i + 1}[0; 1:8] src=%x[1024*i + 4096; 1:8]
        tensor_tensor dst=%t{i + 1}[0; 1:8] data1=%t{i + 1}[0; 1:8] data2=%g[0; 1:8] op=multiply
        dma_copy dst=%y[1024*i + 4096; 1:8] src=%t{i + 1}[0; 1:8]
      }
    }
  }
}
"""


def test_the_text_of_halves() -> None:
    """Both cores load what all iterations read."""
    assert format(split(program(LOOP))) == HALVES
    assert split(program(LOOP, lnc=1)) == program(LOOP, lnc=1)
    assert split(split(program(LOOP))) == split(program(LOOP))


def test_cores_have_tiles_of_their_own() -> None:
    """A half has none of the tiles that only the other one uses."""
    body = """
      sbuf %a : float32[1, 8]
      sbuf %b : float32[1, 8]
      memset dst=%a[0; 1:8] value=#0
      dma_copy dst=%y[0; 1:8] src=%a[0; 1:8]
      memset dst=%b[0; 1:8] value=#0
      dma_copy dst=%y[1024; 1:8] src=%b[0; 1:8]"""
    tiles = [[tile.name for tile in kernel.buffers] for _, kernel in kernels(split(program(body)))]
    assert tiles == [["a"], ["b"]]
    assert all(b.memory is Memory.SBUF for _, k in kernels(program(body)) for b in k.buffers)
