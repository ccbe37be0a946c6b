"""Loops and branches on engines: values as on XLA:CPU, and nothing copied that need not be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.emulate.core import DataflowOrder
from neuronjax.lower.memory.account import account
from neuronjax.lower.tuning import Tuning
from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Kind
from neuronjax.program.program import Kernel, Loop, Node, Program, While
from neuronjax.program.verify import verify
from neuronjax.program.walk import children, instructions, leaves
from tests.lower.differential import FUNCTION, SUM, check, completed, emulated, lowered_function

SQUARE = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
CACHE = np.zeros((100, 16, 16), np.float32)
STEPS = np.arange(8, dtype=np.int32)
WORDS = np.random.default_rng(2).integers(2**32, size=(130, 70), dtype=np.uint32)
LAYERS = np.random.default_rng(1).standard_normal((4, 16, 16)).astype(np.float32) / 4


def stacked(x: Any, rows: Any) -> Any:
    return lax.scan(lambda c, r: (jnp.tanh(c + r), c * 2), x, rows)


def cached(cache: Any, x: Any) -> Any:
    """Reads an old row after a new one has been made."""

    def step(c: Any, i: Any) -> Any:
        updated = lax.dynamic_update_slice(c, (x * 2 + i.astype(x.dtype))[None], (i, 0, 0))
        return updated, c[i].sum()

    return lax.scan(step, cache, STEPS)


def stacked_layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w), None


def cached_layer(at: Any) -> Callable[..., Any]:
    """Puts a row into the caches of a layer, and reads them before and after."""

    def layer(x: Any, caches: Any) -> Any:
        keys, values = caches
        new_keys = lax.dynamic_update_slice(keys, x, (at, 0))
        new_values = lax.dynamic_update_slice(values, x * 2, (at, 0))
        return jnp.tanh(x @ new_keys.T @ new_values + keys[1]), (new_keys, new_values)

    return layer


def nested(x: Any) -> Any:
    def inner(_: Any, v: Any) -> Any:
        return v * 0.5 + 1

    def outer(i: Any, c: Any) -> Any:
        a, b = c
        return lax.fori_loop(0, 3, inner, a) + b, b.at[i].add(1.0)

    return lax.fori_loop(0, 4, outer, (x, x))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "stacked": (stacked, (SQUARE[0], SQUARE)),
    "product": (
        lambda w, rows: lax.scan(lambda c, r: (jnp.tanh(c @ w + r), c.sum()), w, rows),
        (SQUARE / 4, np.stack([SQUARE] * 5)),
    ),
    "gradient": (
        jax.grad(lambda w, r: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), None), r[0], r)[0].sum()),
        (SQUARE / 4, np.stack([SQUARE] * 5)),
    ),
    "cached": (cached, (CACHE, SQUARE)),
    "scattered": (
        lambda k, x: lax.scan(lambda c, i: (c.at[i * 3 % 50].add(x), None), k, STEPS),
        (CACHE, SQUARE),
    ),
    "known": (lambda x: lax.fori_loop(2, 9, lambda i, v: v * i.astype(v.dtype), x), (SQUARE,)),
    "known, made of constants": (
        lambda x: lax.fori_loop(jnp.int32(0) + 2, 12, lambda i, v: v + i.astype(v.dtype), x),
        (SQUARE,),
    ),
    "downwards": (
        lambda x: lax.while_loop(lambda c: c[0] >= 3, lambda c: (c[0] - 2, c[1] * 2), (12, x)),
        (SQUARE,),
    ),
    "never": (lambda x: lax.fori_loop(5, 5, lambda i, v: v * 2, x), (SQUARE,)),
    "backwards": (
        lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x, reverse=True),
        (SQUARE,),
    ),
    "asked": (
        lambda x: lax.while_loop(
            lambda c: jnp.abs(c[0]).sum() < 1e4, lambda c: (c[0] * 2, c[1] + 1), (x, 0)
        ),
        (SQUARE,),
    ),
    "asked of what was just copied": (
        lambda x: lax.while_loop(
            lambda c: (c[0] < 3) & (c[1][0, 0] < 50),
            lambda c: (c[0] + 1, c[1] * 2 + 1),
            (np.int32(0), x),
        ),
        (SQUARE,),
    ),
    "asked within a loop": (
        lambda x: lax.fori_loop(
            0,
            3,
            lambda i, c: lax.while_loop(lambda d: d[0, 0] < 4 * i, lambda d: d * 2 + 1, c + 1),
            x,
        ),
        (SQUARE,),
    ),
    "exchanged": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: (c[1], c[0]), (x, y)),
        (SQUARE, SQUARE * 2),
    ),
    "exchanged in a ring": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: (c[1], c[2] * 2, c[0]), (x, y, x + y)),
        (SQUARE, SQUARE * 2),
    ),
    "one after the other": (
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: (c[1], c[0] + c[1]), (x, y)),
        (SQUARE, SQUARE * 2),
    ),
    "turned": (lambda x: lax.fori_loop(0, 3, lambda i, v: v.T + v, x), (SQUARE,)),
    "turned alone": (lambda x: lax.fori_loop(0, 3, lambda i, v: v.T, x), (SQUARE,)),
    "normalised": (
        lambda x: lax.fori_loop(0, 3, lambda i, v: v / jnp.sqrt((v * v).sum(1, keepdims=True)), x),
        (SQUARE,),
    ),
    "kept and changed later": (
        lambda x: (
            lax.fori_loop(0, 3, lambda i, c: (c[0], c[1] + c[0]), (x * 2, x))[0].at[1].set(0)
            + x * 2
        ),
        (SQUARE,),
    ),
    "nested": (nested, (SQUARE,)),
    "layers": (
        lambda x, w: lax.scan(lambda x, w: (jnp.tanh(x @ w), w.T[:4]), x, w, reverse=True),
        (SQUARE, LAYERS),
    ),
    "layers of layers": (
        lambda x, w: lax.scan(lambda x, w: (lax.scan(stacked_layer, x, w)[0] * 0.5, None), x, w),
        (SQUARE, LAYERS.reshape(2, 2, 16, 16)),
    ),
    "recomputed": (
        jax.grad(lambda w, x: lax.scan(jax.checkpoint(stacked_layer), x, w)[0].sum()),
        (LAYERS, SQUARE),
    ),
    "neighbours": (
        lambda w: lax.fori_loop(0, 3, lambda i, c: c + w[i] * w[i + 1, ::-1].T, w[0]),
        (LAYERS,),
    ),
    "two counters": (
        lambda w: lax.fori_loop(
            0, 2, lambda i, c: lax.fori_loop(0, 2, lambda j, d: d + w[i * 2 + j], c), w[0]
        ),
        (LAYERS,),
    ),
    "counted beyond the type": (
        lambda w: lax.fori_loop(
            0,
            4,
            lambda i, c: (
                c[0] + lax.dynamic_index_in_dim(w, c[1].astype(jnp.int32) - 253, 0, False),
                c[1] + np.uint8(1),
            ),
            (w[0], np.uint8(253)),
        ),
        (LAYERS,),
    ),
    "counted beyond the end": (
        lambda w: lax.fori_loop(
            -2, 6, lambda i, c: c + lax.dynamic_slice(w, (i, 0, 0), (1, 16, 16))[0], w[0]
        ),
        (LAYERS,),
    ),
    "read before it is updated": (
        lambda w: lax.fori_loop(0, 3, lambda i, c: c.at[i + 1].set(c[i] * 2 + c[i + 1]), w),
        (LAYERS,),
    ),
    "made in parts that meet": (
        lambda x, w: lax.fori_loop(
            0, 3, lambda i, c: lax.dynamic_update_slice(c, w[:2] + x * i, (i, 0, 0)), w
        ),
        (SQUARE, LAYERS),
    ),
    "made and read": (
        lambda x, w: lax.scan(lambda c, r: (c @ r, (c @ r + 1, c.sum())), x, w),
        (SQUARE, LAYERS),
    ),
    "caches of layers": (
        lambda k, v, x, i: lax.scan(cached_layer(i), x, (k, v)),
        (LAYERS, LAYERS * 2, SQUARE[:1], np.int32(3)),
    ),
    "updated twice": (
        lambda w, x, i: lax.scan(
            lambda c, k: (c, lax.dynamic_update_slice(k.at[1].set(c[0]) * 2, c, (i, 0))), x, w
        ),
        (LAYERS, SQUARE[:1], np.int32(2)),
    ),
    "one layer": (
        lambda x, w: lax.scan(lambda x, w: (jnp.tanh(x @ w), x * 2), x, w[:1]),
        (SQUARE, LAYERS),
    ),
    "kept at the end": (
        lambda w: lax.fori_loop(0, 4, lambda i, c: (c[0] + w[c[1]], c[1] + 1), (w[0], 0)),
        (LAYERS,),
    ),
    "looked at in a condition": (
        lambda w: lax.while_loop(
            lambda c: (c[0] < 3) & (lax.dynamic_index_in_dim(c[1], c[0], 0, False)[0, 0] < 9),
            lambda c: (c[0] + 1, c[1] * 2),
            (0, w),
        ),
        (LAYERS,),
    ),
    "branches": (
        lambda i, x: lax.switch(i, [lambda v: v + 1, lambda v: v.T, lambda v: v], x),
        (np.array(1, np.int32), SQUARE),
    ),
    "branch": (
        lambda x: lax.cond(x[0, 0] > 0, lambda v: v @ v, lambda v: v.at[1].set(0), x),
        (SQUARE,),
    ),
    "branch in a loop": (
        lambda x: lax.fori_loop(
            0, 6, lambda i, v: lax.cond(i % 2 == 0, lambda w: w * 2, lambda w: w + 1, v), x
        ),
        (SQUARE,),
    ),
}


AS_LOOPS = Tuning(unrolled_operations=0)


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    function, arguments = CASES[name]
    assert verify(check(function, *arguments, tolerance=SUM, tuning=AS_LOOPS)) == ()


def _rotated(x: jax.Array) -> jax.Array:
    """Rounds whose distances come from one of two rows in turn, as those of Threefry."""

    def body(_: int, carry: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        x, now, then = carry
        for distance in now:
            x = x ^ (lax.shift_left(x, distance) | lax.shift_right_logical(x, 32 - distance))
        return x, then, now

    distances = np.uint32([[13, 15, 26, 6], [17, 29, 16, 24]])
    return lax.fori_loop(0, 5, body, (x, *map(jnp.asarray, distances)))[0]


SHORT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{name: CASES[name] for name in ("known", "turned", "downwards")},
    "rotated": (_rotated, (WORDS,)),
    "random numbers": (lambda key: jax.random.bits(key, (130, 70)), (np.uint32([1, 2]),)),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_loops_are_written_out(name: str) -> None:
    function, arguments = SHORT[name]
    program = check(function, *arguments, tolerance=SUM)
    assert loops(program) == []


def test_distances_of_written_out_rounds_are_numbers() -> None:
    """Vector shifts by them; only GpSimd shifts by what it loads."""
    program = check(_rotated, WORDS)
    assert "custom_op" not in {each.mnemonic for each in leaves(program.body)}


@pytest.mark.parametrize("name", CASES)
def test_values_as_a_core_runs_it(name: str) -> None:
    """Kernels begin while those before still run; transfers end as late as they can."""
    function, arguments = CASES[name]
    program, code = lowered_function(function, *arguments, tuning=AS_LOOPS)
    given = [[np.asarray(a) for a in jax.tree.leaves(arguments)]]
    whole = completed(program)
    (plain,) = emulated(whole, code, given)
    (late,) = emulated(whole, code, given, order=DataflowOrder(0, adversarial=True))
    for got, want in zip(late, plain, strict=True):
        np.testing.assert_array_equal(got, want)


def loops(program: Program) -> list[Loop | While]:
    """Loops around kernels."""
    return [node for node in program.body if isinstance(node, Loop | While)]


def moved(program: Program, loop: Loop | While) -> int:
    """Bytes that plain transfers move in one iteration."""
    functions = {each.name: each.body for each in program.functions}

    def instructions(nodes: tuple[Node, ...], times: int) -> Iterator[tuple[Instruction, int]]:
        for node in nodes:
            if isinstance(node, Instruction):
                yield node, times
            elif isinstance(node, Loop) and isinstance(node.trips, int):
                yield from instructions(node.body, times * node.trips)
            else:
                name = getattr(node, "function", None)
                yield from instructions(functions[name] if name else children(node), times)

    body = instructions(loop.body, 1)
    return sum(each.dst.nbytes * times for each, times in body if isinstance(each, DmaCopy))


@pytest.mark.parametrize("name", ["known", "known, made of constants", "downwards", "stacked"])
def test_known_trips(name: str) -> None:
    """Loops that count to a constant ask no condition."""
    function, arguments = CASES[name]
    assert [
        type(each) for each in loops(check(function, *arguments, tolerance=SUM, tuning=AS_LOOPS))
    ] == [Loop]


@pytest.mark.parametrize("steps", [10, 1000])
def test_stacking_moves_one_row(steps: int) -> None:
    """What a step moves does not depend on how many there are."""
    rows = np.ones((steps, 64), np.float32)
    program = check(stacked, rows[0], rows, tolerance=FUNCTION, tuning=AS_LOOPS)
    (loop,) = loops(program)
    assert moved(program, loop) < 10 * 64 * 4


@pytest.mark.parametrize("name", ["cached", "scattered"])
def test_updates_in_place(name: str) -> None:
    function, arguments = CASES[name]
    program = check(function, *arguments, tolerance=SUM, tuning=AS_LOOPS)
    (loop,) = loops(program)
    assert moved(program, loop) < 10 * SQUARE.nbytes < CACHE.nbytes


@pytest.mark.parametrize("name", ["known", "stacked", "asked"])
def test_carried_in_place(name: str) -> None:
    """Results are made where the next iteration looks for them."""
    function, arguments = CASES[name]
    program = check(function, *arguments, tolerance=SUM, tuning=AS_LOOPS)
    (loop,) = loops(program)
    names = [node.name for node in loop.body if isinstance(node, Kernel)]
    assert not [each for each in names if each.startswith("copy")]


def test_a_stack_that_keeps_zeros_begins_as_a_fill() -> None:
    """A transfer would read the zero once for each element."""

    def layers(w: jax.Array) -> Any:
        return lax.fori_loop(0, 4, lambda i, c: c.at[i].set(jnp.tanh(w[i])), jnp.zeros((5, 20, 30)))

    program = check(layers, np.ones((4, 20, 30), np.float32), tolerance=FUNCTION)
    fills = [node for node in program.body if isinstance(node, Kernel) and "fill" in node.name]
    sources = [each.src for _, each in instructions(program) if isinstance(each, DmaCopy)]
    repeated = [
        dim.size for src in sources if not src.buffer.on_chip for dim in src.dims if not dim.stride
    ]
    assert fills
    assert math.prod(repeated) == 1


@pytest.mark.parametrize("layer", [jnp.add, jnp.matmul])
def test_a_scan_moves_what_its_layers_move(layer: Callable[[Any, Any], Any]) -> None:
    """Weights are read where they are stacked, results made where they will be; the stack of
    results, which the trips write whole, is not filled, and nobody counts."""
    width, depth = 128, 4

    def layers(x: jax.Array, w: jax.Array) -> Any:
        return lax.scan(lambda x, w: (layer(x, w), jnp.exp(x)), x, w)

    x, w = np.ones((width, width), np.float32), np.ones((depth, width, width), np.float32)
    program, _ = lowered_function(layers, x, w)
    (loop,) = loops(program)
    most = 7 * x.nbytes  # x twice, w; x, exp(x); a copy of a result that cannot take x's place
    assert moved(program, loop) <= most
    assert moved(program, replace(loop, body=program.body)) <= x.nbytes + depth * most


def test_caches_of_layers_are_copied_once() -> None:
    """From the stack that is read to the stack that is made, where a row is put into them."""
    caches, x = np.ones((4, 512, 128), np.float32), np.ones((1, 128), np.float32)

    def layer(x: Any, cache: Any) -> Any:
        return x * 2, lax.dynamic_update_slice(cache, x, (3, 0))

    program, _ = lowered_function(lambda caches, x: lax.scan(layer, x, caches), caches, x)
    (loop,) = loops(program)
    assert moved(program, loop) <= caches[0].nbytes + 5 * x.nbytes


ROWS, WIDTH = 1024, 64
WEIGHTS = np.random.default_rng(0).standard_normal((8, WIDTH, WIDTH)).astype(np.float32)


def accumulated(depth: int) -> int:
    """Bytes between kernels of gradients that are added up over micro-batches; those of weights are
    asked for last, as XLA's partitioner writes programs."""

    def add(sums: Any, x: Any) -> Any:
        inputs, outer = [], []
        for weight in WEIGHTS[:depth]:
            inputs.append(x)
            x = x @ weight
        for weight in reversed(WEIGHTS[:depth]):
            outer.insert(0, x)
            x = x @ weight.T
        return [s + x.T @ g for s, x, g in zip(sums, inputs, outer, strict=True)], None

    zeros = [np.zeros((WIDTH, WIDTH), np.float32)] * depth
    batches = np.zeros((3, ROWS, WIDTH), np.float32)
    program, _ = lowered_function(lambda sums, x: lax.scan(add, sums, x)[0], zeros, batches)
    return account(completed(program)).hbm_by_kind[Kind.SCRATCH]


def test_gradients_are_added_up_as_soon_as_they_can_be() -> None:
    """A layer more takes the memory of its sum and of its input, not of a gradient too."""
    layer = 4 * ROWS * WIDTH + 4 * WIDTH * WIDTH
    assert accumulated(8) - accumulated(4) <= 4 * layer
