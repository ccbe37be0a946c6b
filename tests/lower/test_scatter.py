"""`scatter` on engines: the very elements that XLA:CPU gives, updates in the order of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.lower.memory.allocate import allocate
from neuronjax.program.verify import verify
from tests.lower.differential import EXACT, SUM, check, lowered, sent
from tests.lower.test_gather import indices, table

ONES = np.ones((300, 3), np.float32)


def general(
    window: tuple[int, ...],
    inserted: tuple[int, ...],
    scattered: tuple[int, ...],
    how: Callable[..., Any] = lax.scatter_add,
    batching: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    mode: str = "drop",
) -> Callable[[Any, Any, Any], Any]:
    numbers = lax.ScatterDimensionNumbers(window, inserted, scattered, *batching)
    return lambda x, i, u: how(x, i, u, numbers, mode=mode)


def whole_numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 9, shape).astype(dtype)


WAYS = {
    "add": lambda t, i, u: t.at[i].add(u),
    "multiply": lambda t, i, u: t.at[i].multiply(u),
    "minimum": lambda t, i, u: t.at[i].min(u),
    "maximum": lambda t, i, u: t.at[i].max(u),
}


def _sums_of_gradients(t: jax.Array, i: jax.Array, u: jax.Array) -> Any:
    """What comes back for each row of a table, and all of it, as a softmax adds it up."""

    def chosen(t: jax.Array) -> jax.Array:
        return jnp.take_along_axis(t, i[:, None], 1, mode="fill", fill_value=0)[:, 0]

    (back,) = jax.vjp(chosen, t)[1](u)
    return back, (-back.astype(jnp.float32)).sum(1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "set": (
        lambda t, i, u: t.at[i].set(u),
        (table(40, 5), np.arange(3, 37, dtype=np.int32), ONES[:34, :1]),
    ),
    "set, the last of equal ones": (
        lambda t, i, u: t.at[i].set(u),
        (table(40, 5), indices(20, 300), whole_numbers(300, 5)),
    ),
    "set one": (lambda t, i: t.at[i].set(7.0), (table(40, 5), np.int32(7))),
    "set one outside": (
        lambda t, i: t.at[i].set(7.0, mode="drop"),
        (table(40, 5), np.int32(400)),
    ),
    "counts of many": (lambda i: jnp.bincount(i, length=70), (indices(90, 70_000) - 5,)),
    "counts of prime numbers of places": (
        lambda t, i: t.at[i].add(-3, mode="drop"),
        (np.arange(311, dtype=np.int32), indices(400, 3_000) - 50),
    ),
    "sums of rows of few places": (
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (table(40, 5), indices(60, 3_000) - 9, whole_numbers(3_000, 5)),
    ),
    "sums of rows of few places that are not finite": (
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (
            table(40, 5),
            indices(60, 3_000) - 9,
            np.where(np.arange(5) > 3, np.inf, whole_numbers(3_000, 5)),
        ),
    ),
    "set a window": (
        lambda t, i, u: t.at[:, i].set(u),
        (table(200, 50), np.int32(7), whole_numbers(200)),
    ),
    **{
        f"{name} of {np.dtype(dtype).name}": (
            way,
            (
                whole_numbers(40, 3, dtype=dtype),
                indices(40, 300),
                whole_numbers(300, 3, dtype=dtype),
            ),
        )
        for name, way in WAYS.items()
        for dtype in (np.float32, jnp.bfloat16, np.int32, np.int8, np.uint16, np.float16)
    },
    "add fractions": (
        WAYS["add"],
        (table(40, 3) / 7, indices(40, 300), np.sin(table(300, 3))),
    ),
    **{
        f"{name} to single numbers of {np.dtype(dtype).name}": (
            way,
            (
                whole_numbers(70, dtype=dtype),
                indices(90, 300) - 10,
                whole_numbers(300, dtype=dtype),
            ),
        )
        for name, way in WAYS.items()
        for dtype in (np.float32, jnp.bfloat16, np.int32)
    },
    "add to a number of each row": (
        lambda t, i, u: t.at[jnp.arange(40), i].add(u),
        (table(40, 30), indices(35, 40), whole_numbers(40)),
    ),
    "set a number of each row": (
        lambda t, i, u: jnp.put_along_axis(t, i[:, None], u[:, None], 1, inplace=False),
        (table(40, 30), indices(30, 40), whole_numbers(40)),
    ),
    "gradient of a chosen number of each row": (
        lambda t, i: jax.grad(lambda t: jnp.take_along_axis(t, i[:, None], 1).sum())(t),
        (table(40, 30), indices(40, 40)),
    ),
    "gradient of a chosen number of one row": (
        lambda t, i: jax.grad(lambda t: jnp.take_along_axis(t, i[:, None], 1).sum())(t),
        (table(1, 90), indices(90, 1)),
    ),
    "sums of gradients of chosen numbers": (
        _sums_of_gradients,
        (table(40, 90), indices(110, 40) - 10, whole_numbers(40)),
    ),
    "sums of narrow gradients of chosen numbers": (
        lambda t, i, u: _sums_of_gradients(t.astype(jnp.bfloat16), i, u.astype(jnp.bfloat16)),
        (table(40, 90), indices(110, 40) - 10, whole_numbers(40)),
    ),
    "sums of gradients that are not finite": (
        _sums_of_gradients,
        (table(4, 90), indices(90, 4), np.float32([np.inf, np.nan, -0.0, 0.5])),
    ),
    "set numbers of the only row": (
        lambda t, i, u: t.at[:, i].multiply(u),
        (table(1, 90), indices(99, 7), whole_numbers(1, 7)),
    ),
    "add to rows between dimensions of one element": (
        lambda t, i, u: t.at[:, i].add(u),
        (table(1, 9, 1, 40), indices(9, 12), whole_numbers(1, 12, 1, 40)),
    ),
    "counts": (lambda i: jnp.bincount(i, length=50), (indices(60, 300),)),
    "add outside": (
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (table(40, 3), indices(80, 300) - 20, ONES),
    ),
    "all equal": (WAYS["add"], (table(40, 3), indices(1, 300), np.sin(table(300, 3)))),
    "infinite numbers stay where they are": (
        WAYS["add"],
        (
            table(40, 3),
            indices(40, 300),
            np.where(whole_numbers(300, 3) == 4, np.float32(np.inf), ONES),
        ),
    ),
    "what is not finite stays where it is": (
        WAYS["add"],
        (
            table(40, 3),
            indices(40, 300),
            np.choose(
                whole_numbers(300, 3, dtype=np.int32) // 2,
                [ONES, -ONES, np.float32(np.nan), -np.float32(np.inf), np.float32(np.inf)],
            ),
        ),
    ),
    "sums in parts": (WAYS["add"], (table(20, 8200), indices(30, 150), whole_numbers(150, 8200))),
    "sums of many columns": (
        WAYS["add"],
        (table(40, 3), indices(40, 8500), whole_numbers(8500, 3)),
    ),
    "many": (WAYS["add"], (table(4000), indices(4000, 10_000), whole_numbers(10_000))),
    "unique": (
        lambda t, i, u: t.at[i].add(u, unique_indices=True),
        (table(400, 3), np.random.default_rng(0).permutation(400)[:300].astype(np.int32), ONES),
    ),
    "a window of two dimensions": (
        WAYS["add"],
        (table(9, 30, 40), indices(9, 20), whole_numbers(20, 30, 40)),
    ),
    "great windows": (WAYS["add"], (table(9, 300, 80), indices(9, 4), whole_numbers(4, 300, 80))),
    "great windows of integers": (
        WAYS["maximum"],
        (
            table(9, 300, 80, dtype=np.int32),
            indices(9, 4),
            whole_numbers(4, 300, 80, dtype=np.int32),
        ),
    ),
    "one wide window": (WAYS["add"], (table(9, 768), indices(9, 1), whole_numbers(1, 768))),
    "a few windows that 96 divides": (
        WAYS["maximum"],
        (table(9, 3, 12288), indices(9, 4), whole_numbers(4, 3, 12288)),
    ),
    "windows of columns": (
        lambda t, i, u: t.at[:, :, i].multiply(u),
        (table(384, 50, 9), indices(9, 1), whole_numbers(384, 50, 1)),
    ),
    "windows in parts": (
        WAYS["multiply"],
        (table(70, 5001), indices(70, 100), whole_numbers(100, 5001)),
    ),
    "in columns": (
        lambda t, i, u: t.at[:, i].add(u),
        (table(6, 40), indices(40, 300), whole_numbers(6, 300)),
    ),
    "two numbers": (
        lambda t, i, j, u: t.at[i, :, j].add(u),
        (table(9, 4, 7), indices(9, 150), indices(7, 150), whole_numbers(150, 4)),
    ),
    "overlapping windows": (
        general((1, 2), (), (0, 1)),
        (table(9, 7), indices(8, 20, 2), whole_numbers(20, 2, 3)),
    ),
    "overlapping windows, last set": (
        general((1, 2), (), (1, 0), lax.scatter),
        (table(9, 7), indices(8, 20, 2), whole_numbers(20, 2, 3)),
    ),
    "apply": (
        lambda t, i: t.at[i].apply(lambda v: jnp.maximum(v * 2 + 1, 9)),
        (table(40, 3), np.arange(4, 30, dtype=np.int32)),
    ),
    "vmapped": (
        jax.vmap(WAYS["add"]),
        (table(4, 30, 3), indices(30, 4, 50), whole_numbers(4, 50, 3)),
    ),
    "vmapped great windows": (
        jax.vmap(lambda t, u, i: lax.dynamic_update_slice(t, u, (i, 0))),
        (table(3, 70, 600), whole_numbers(3, 30, 600), indices(90, 3)),
    ),
    "vmapped slices": (
        jax.vmap(lambda t, u, i: lax.dynamic_update_slice(t, u, (0, i)), in_axes=(0, 0, None)),
        (table(3, 8, 9), whole_numbers(3, 8, 2), np.int32(4)),
    ),
    "gradient of a lookup": (
        jax.grad(lambda t, i: jnp.sum(jnp.sin(t[i]) * 3)),
        (table(50, 16) * 0, indices(50, 200)),
    ),
    "no updates": (
        lambda t, i, u: t.at[i].add(u) + i.sum() + u.sum(),
        (table(40, 3), indices(40, 0), ONES[:0]),
    ),
    "of its own rows": (
        lambda t, i: t.at[i].add(t[:30]) + t,
        (table(40, 3), indices(40, 30)),
    ),
    "of itself": (lambda t, i: (t * 2).at[i].set((t * 2)[3]), (table(40, 3), np.int32(5))),
    "bool": (lambda t, i: t.at[i].set(True), (table(40, 3) > 90, indices(40, 10))),
    "bool, or": (WAYS["maximum"], (table(40, 3) > 90, indices(40, 99), whole_numbers(99, 3) > 4)),
    "unsigned indices": (
        general((1,), (0,), (0,)),
        (table(300, 3), np.array([[2**31], [2**32 - 1], [299], [300], [5]], np.uint32), ONES[:5]),
    ),
    "one unsigned index": (
        general((0,), (0,), (0,)),
        (table(300, 3), np.array([2**31 + 1], np.uint32), ONES[0]),
    ),
    "segment sum": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=10),
        (whole_numbers(200, 4), indices(12, 200)),
    ),
    "histogram": (lambda i: jnp.bincount(i, length=16), (indices(20, 500),)),
}


ROUNDED = {"add fractions", "all equal"}
"""Cases whose updates are added up in another order."""


@pytest.mark.parametrize("name", CASES)
def test_scatter(name: str) -> None:
    function, arguments = CASES[name]
    tolerance = SUM if name in ROUNDED else EXACT
    assert verify(check(function, *arguments, tolerance=tolerance)) == ()


TOUCHED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows added, some of them outside": (
        lambda t, i, u: t.at[i].add(u, mode="drop"),
        (table(20_000, 200), indices(20_100, 140), whole_numbers(140, 200)),
    ),
    "rows that are not finite": (
        lambda t, i, u: t.at[i].add(u),
        (table(20_000, 200), np.array([[7, 19_999], [7, 0], [2, 7]], np.int32),
         np.full((3, 2, 200), np.inf, np.float32)),
    ),
    "gradient of an embedding, every row many times": (
        lambda t, i, u: jax.vjp(lambda t: t[i], t * 0)[1](u)[0],
        (table(12_000, 20, 16), indices(40, 300), whole_numbers(300, 20, 16)),
    ),
}  # fmt: skip
"""Sums in large tables of BF16, of which few rows change."""


@pytest.mark.parametrize("name", TOUCHED)
def test_rows_that_change_are_added_up_apart(name: str) -> None:
    function, (rows, index, updates) = TOUCHED[name]
    given = (rows.astype(jnp.bfloat16), index, updates.astype(jnp.bfloat16))
    program = check(function, *given, numerics="chip")
    assert verify(program) == ()
    written = [buffer for buffer in program.buffers if buffer.elements >= rows.size]
    assert all(buffer.dtype.storage_bits == 16 for buffer in written)


@pytest.mark.parametrize("chip", ["trainium1", "trainium2", "trainium3"])
@pytest.mark.parametrize("vectors", [300, 4396])
@pytest.mark.parametrize("width", [100_000, 3520 * 20, 4159 * 20, 4991 * 20])
def test_sums_of_wide_windows_fit(chip: str, vectors: int, width: int) -> None:
    x = jax.ShapeDtypeStruct((500, width), np.float32)
    i = jax.ShapeDtypeStruct((vectors,), np.int32)
    u = jax.ShapeDtypeStruct((vectors, width), np.float32)
    code = sent(jax.jit(WAYS["add"]).trace(x, i, u))
    assert verify(allocate(lowered(code, chip=chip))) == ()
