"""Products against XLA:CPU: layouts, sizes, types, and what follows them in the same kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.lower.memory.allocate import allocate
from neuronjax.program.program import Program
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions, kernels
from tests.lower.differential import EXACT, Tolerance, check
from tests.program.counts import count_instructions

PRODUCT = Tolerance(relative=1e-5)
ROUNDED = Tolerance(ulps=1, relative=1e-3)
"""Sums in another order can fall on the other side of a rounding."""


def drawn(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Numbers that differ from each other."""
    rng = np.random.default_rng([seed, *shape])
    wanted = np.dtype(dtype)
    if wanted.kind in "iu":
        limits = jnp.iinfo(wanted)
        return rng.integers(max(limits.min, -100), min(limits.max, 100), shape).astype(wanted)
    if wanted == np.bool_:
        return rng.integers(0, 2, shape).astype(wanted)
    return rng.normal(size=shape).astype(wanted)


def held(
    function: Callable[..., Any],
    *arguments: Any,
    tolerance: Tolerance = PRODUCT,
    numerics: str = "ieee",
) -> Program:
    """As `check`; the program breaks no rule, with addresses or without."""
    program = check(function, *arguments, tolerance=tolerance, numerics=numerics)
    assert verify(program) == ()
    assert verify(allocate(program)) == ()
    return program


SPECS = [
    # einsum, sizes of its letters
    ("mk,kn->mn", {"m": 130, "k": 513, "n": 7}),
    ("mk,kn->mn", {"m": 1, "k": 130, "n": 513}),
    ("mk,kn->mn", {"m": 513, "k": 7, "n": 1}),
    ("mk,kn->mn", {"m": 7, "k": 1, "n": 130}),
    ("mk,kn->mn", {"m": 256, "k": 256, "n": 640}),
    ("mk,nk->mn", {"m": 130, "k": 513, "n": 130}),
    ("mk,nk->mn", {"m": 3, "k": 1024, "n": 600}),
    ("km,kn->mn", {"m": 130, "k": 260, "n": 513}),
    ("km,nk->mn", {"m": 130, "k": 260, "n": 513}),
    ("mk,nk->mn", {"m": 20, "k": 16384, "n": 40}),
    ("k,k->", {"k": 513}),
    ("k,kn->n", {"k": 300, "n": 130}),
    ("mk,k->m", {"k": 300, "m": 130}),
    ("m,n->mn", {"m": 130, "n": 7}),
    ("bmk,bkn->bmn", {"b": 3, "m": 130, "k": 65, "n": 7}),
    ("bhmk,bhnk->bhmn", {"b": 2, "h": 3, "m": 33, "k": 64, "n": 65}),
    ("bmhk,bnhk->bhmn", {"b": 2, "h": 2, "m": 130, "k": 16, "n": 70}),
    ("bhmn,bnhk->bmhk", {"b": 2, "h": 2, "m": 130, "k": 16, "n": 70}),
    ("bqhgd,bkhd->bhgqk", {"b": 2, "h": 2, "g": 2, "q": 20, "k": 30, "d": 16}),
    ("mhk,hkn->mn", {"m": 130, "h": 3, "k": 50, "n": 20}),
    ("mkh,hkn->mn", {"m": 20, "h": 3, "k": 50, "n": 20}),
    ("abk,kcd->abcd", {"a": 5, "b": 30, "k": 130, "c": 3, "d": 200}),
    ("amk,kn->man", {"a": 3, "m": 50, "k": 40, "n": 20}),
    ("bmk,bkn->mn", {"b": 4, "m": 20, "k": 30, "n": 40}),
    ("mk,kn->mn", {"m": 2, "k": 40000, "n": 3}),
    ("k,k->", {"k": 8197}),
    ("bk,bk->b", {"b": 130, "k": 70}),
    ("kb,bk->b", {"b": 33, "k": 70}),
    ("bhk,hkb->hb", {"b": 5, "h": 3, "k": 40}),
]  # fmt: skip


def operands(spec: str, sizes: dict[str, int], dtypes: tuple[str, str]) -> list[np.ndarray]:
    letters = spec.split("->")[0].split(",")
    shapes = [tuple(sizes[letter] for letter in each) for each in letters]
    return [drawn(s, d, n) for n, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]


@pytest.mark.parametrize(("spec", "sizes"), SPECS)
def test_layouts(spec: str, sizes: dict[str, int]) -> None:
    a, b = operands(spec, sizes, ("float32", "float32"))
    held(lambda a, b: jnp.einsum(spec, a, b), a, b)


@pytest.mark.parametrize(("spec", "sizes"), [SPECS[0], SPECS[5], SPECS[6], SPECS[9], SPECS[16]])
def test_layouts_in_two_bytes(spec: str, sizes: dict[str, int]) -> None:
    a, b = operands(spec, sizes, ("bfloat16", "bfloat16"))
    held(lambda a, b: jnp.einsum(spec, a, b), a, b, tolerance=ROUNDED)


TYPES = [
    # left, right, result, tolerance
    ("bfloat16", "bfloat16", "float32", PRODUCT),
    ("float16", "float16", "float16", ROUNDED),
    ("float16", "float16", "float32", PRODUCT),
    ("float8_e4m3", "float8_e4m3", "float32", PRODUCT),
    ("float8_e5m2", "float8_e4m3", "bfloat16", ROUNDED),
    ("float8_e4m3fn", "float8_e4m3fn", "float32", PRODUCT),
    ("bfloat16", "float32", "float32", PRODUCT),
    ("int8", "int8", "int32", EXACT),
    ("int8", "int8", "int8", EXACT),
    ("uint8", "uint8", "int32", EXACT),
    ("int8", "bfloat16", "float32", PRODUCT),
    ("bool", "bool", "int32", EXACT),
    ("int32", "int32", "int32", EXACT),
    ("int16", "int16", "int32", EXACT),
    ("int32", "int32", "int64", EXACT),
]  # fmt: skip


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize(("left", "right", "result", "tolerance"), TYPES)
def test_types(left: str, right: str, result: str, tolerance: Tolerance, spec: str) -> None:
    a, b = operands(spec, {"m": 35, "k": 140, "n": 20}, (left, right))
    with jax.enable_x64(True):
        held(
            lambda a, b: jnp.einsum(spec, a, b, preferred_element_type=result),
            a, b, tolerance=tolerance,
        )  # fmt: skip


def test_integers_at_their_limits_are_exact() -> None:
    a = np.full((3, 5000), -128, np.int8)
    program = held(lambda a: jnp.einsum("mk,nk->mn", a, a, preferred_element_type="int32"), a)
    assert count_instructions(program)["nc_matmul"] == 0


EPILOGUES: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    ("bias", lambda y, b: y + b, ((200,),)),
    ("bias of rows", lambda y, b: y + b[:, None], ((130,),)),
    ("residual", lambda y, r: r + y, ((130, 200),)),
    ("scale", lambda y: y * 0.125, ()),
    ("square", lambda y: y * y, ()),
    ("gelu", lambda y, b: jax.nn.gelu(y + b), ((200,),)),
    ("remainder", lambda y: jnp.floor(y), ()),
    ("cast", lambda y: y.astype(jnp.bfloat16), ()),
    ("select", lambda y, r: jnp.where(y > 0, y, r), ((130, 200),)),
    ("two results", lambda y, r: (y, y + r), ((130, 200),)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", EPILOGUES, ids=lambda case: case[0])
def test_epilogues(case: Any, dtype: str) -> None:
    _, function, shapes = case
    a, b = operands("mk,kn->mn", {"m": 130, "k": 140, "n": 200}, (dtype, dtype))
    others = [drawn(shape, dtype) for shape in shapes]
    tolerance = Tolerance(ulps=2, relative=1e-5 if dtype == "float32" else 1e-2)
    if case[0] == "remainder":
        a, b = np.round(a), np.round(b)
    program = held(lambda a, b, *o: function(a @ b, *o), a, b, *others, tolerance=tolerance)
    assert len(list(kernels(program))) == 1


SEEN: list[tuple[str, Callable[..., Any]]] = [
    ("reversed", lambda a, b: a[::-1] @ b[:, ::-1]),
    ("sliced", lambda a, b: a[3:, 1:-1] @ b[1:-1, 2::3]),
    ("contraction reversed", lambda a, b: a[:, ::-1] @ b),
    ("broadcast", lambda a, b: jnp.broadcast_to(a[:1], (9, 140)) @ b),
    ("constant", lambda a, b: (a @ jnp.ones((140, 5), a.dtype)) * b[0, 0]),
    ("broadcast contraction", lambda a, b: jnp.broadcast_to(a[:, :1], (64, 140)) @ b),
    ("reshaped", lambda a, b: a.reshape(32, 2, 140) @ b.reshape(2, 70, 70).mT.reshape(140, 70)),
]  # fmt: skip


@pytest.mark.parametrize("case", SEEN, ids=lambda case: case[0])
def test_views(case: Any) -> None:
    a, b = operands("mk,kn->mn", {"m": 64, "k": 140, "n": 70}, ("float32", "float32"))
    held(case[1], a, b)


REPEATED: list[tuple[str, Callable[..., Any], tuple[tuple[int, ...], tuple[int, ...]]]] = [
    ("keys", lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, 4, 1)),
     ((2, 12, 2, 16), (2, 3, 140, 16))),
    ("keys first", lambda q, k: jnp.einsum("bhkd,bhqd->bhkq", jnp.repeat(k, 4, 1), q),
     ((2, 12, 2, 16), (2, 3, 140, 16))),
    ("values", lambda w, v: jnp.einsum("bhqk,bhkd->bhqd", w, jnp.repeat(v, 5, 1)),
     ((2, 10, 1, 70), (2, 2, 70, 16))),
    ("of one head", lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, jnp.repeat(k, 6, 1)),
     ((2, 6, 3, 16), (2, 1, 33, 16))),
    ("of the first dimension", lambda q, k: jnp.einsum("hbqd,hbkd->hbqk", q, jnp.repeat(k, 4, 0)),
     ((8, 2, 1, 16), (2, 2, 40, 16))),
    ("without rows", lambda q, k: jnp.einsum("bhd,bhkd->bhk", q, jnp.repeat(k, 4, 1)),
     ((2, 8, 16), (2, 2, 40, 16))),
    ("all heads again", lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, jnp.tile(k, (1, 4, 1, 1))),
     ((2, 12, 2, 16), (2, 3, 40, 16))),
]  # fmt: skip


@pytest.mark.parametrize("case", REPEATED, ids=lambda case: case[0])
def test_repeated_matrices(case: Any) -> None:
    _, function, (left, right) = case
    held(function, drawn(left), drawn(right, seed=1))


def test_large_products_load_operands_once() -> None:
    """Both operands fit: each of their elements comes from HBM once."""
    a, b = operands("mk,kn->mn", {"m": 1024, "k": 1024, "n": 1024}, ("bfloat16", "bfloat16"))
    program = held(lambda a, b: a @ b, a, b, tolerance=ROUNDED)
    counts = count_instructions(program)
    assert counts["nc_matmul"] == 8 * 8 * 2
    assert loaded(program) == a.nbytes + b.nbytes


def test_a_bias_is_loaded_once() -> None:
    """For all tiles of rows; sums are read where they are."""
    a, b = operands("mk,kn->mn", {"m": 300, "k": 64, "n": 600}, ("float32", "float32"))
    bias = drawn((600,))
    program = held(lambda a, b, c: a.T @ b + c, a.T.copy(), b, bias)
    assert loaded(program) == a.nbytes + b.nbytes + 128 * bias.nbytes
    assert count_instructions(program)["tensor_copy"] == 0


def test_a_long_bias() -> None:
    a, b = operands("mk,kn->mn", {"m": 140, "k": 20, "n": 5000}, ("float32", "float32"))
    held(lambda a, b, c: a @ b + c, a, b, drawn((5000,)))


def loaded(program: Program) -> int:
    """Bytes that DMA brings into SBUF, over a whole run."""
    total = 0
    for place, each in transfers(program):
        if each.dst.buffer.on_chip:
            total += each.src.nbytes * math.prod(loop.trips for loop in place.loops)
    return total


def transfers(program: Program) -> list[tuple[Any, Any]]:
    return [(p, i) for p, i in instructions(program) if i.mnemonic == "dma_copy"]


def test_long_runs_of_wide_operands() -> None:
    """Runs of 558 bytes in each partition, of 512 columns, have no room in SBUF."""
    a, b = drawn((24, 128 * 279), "bfloat16"), drawn((512, 128 * 279), "bfloat16", seed=1)

    def product(a: Any, b: Any) -> Any:
        return jnp.einsum("mk,nk->mn", a, b, preferred_element_type=jnp.float32)

    held(product, a, b, tolerance=PRODUCT)


@pytest.mark.parametrize("name", ["bias", "residual", "both halves of a computed row"])
def test_what_arguments_alone_decide_belongs_to_the_product(name: str) -> None:
    """A bias that is widened, or made of arguments, after the product was computed."""
    functions: dict[str, Callable[..., Any]] = {
        "bias": lambda a, b, row, x: a @ b + row,
        "residual": lambda a, b, row, x: a @ b + x,
        "both halves of a computed row": lambda a, b, row, x: a @ b + row * (x + 1),
    }
    shapes = ((130, 64), (64, 600), (600,), (130, 600))
    arrays = [drawn(shape, "bfloat16", seed=n) for n, shape in enumerate(shapes)]
    program = held(functions[name], *arrays, tolerance=ROUNDED)
    assert len(list(kernels(program))) == 1


def test_products_begin_before_all_columns_are_there() -> None:
    a, b = drawn((130, 1280), "bfloat16"), drawn((1280, 2048), "bfloat16", seed=1)
    program = held(lambda a, b: a @ b, a, b, tolerance=ROUNDED)
    loads = [each for _, each in transfers(program) if each.src.buffer.name == "arg1"]
    assert loads
    assert all(each.src.nbytes < b.nbytes / 2 for each in loads)
