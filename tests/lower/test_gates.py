"""Products whose halves meet again, against XLA:CPU: two kernels, none for the halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.program.program import Program
from neuronjax.program.walk import kernels
from tests.lower.differential import SUM, Tolerance, check
from tests.lower.test_matmul import drawn

ROUNDED = Tolerance(ulps=2, relative=1e-2)

X, W, ROW = drawn((40, 70)), drawn((70, 520), seed=1), drawn((520,), seed=2)


def split(x: Any, w: Any, row: Any) -> Any:
    value, gate = jnp.split(x @ w + row, 2, axis=-1)
    return value * jnp.tanh(gate)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "split": (split, (X, W, ROW)),
    "in two bytes": (split, tuple(array.astype(jnp.bfloat16) for array in (X, W, ROW))),
    "transposed weights": (lambda x, w, row: split(x, w.T, row), (X, W.T.copy(), ROW)),
    "a number for each row": (
        lambda x, w, row: split(x, w, row[:40, None]),
        (X, W, ROW),
    ),
    "weights with a dimension for halves": (
        lambda x, w: (h := jnp.einsum("sd,dcf->scf", x, w))[:, 0] * jnp.tanh(h[:, 1]),
        (X, W.reshape(70, 2, 260)),
    ),
    "batches, scaled": (
        lambda x, w: split(x, w, 0.0) * 2,
        (X.reshape(4, 10, 70), W),
    ),
    "weights first": (
        lambda x, w: (h := w.T @ x)[:260] * jnp.tanh(h[260:]),
        (X.T.copy(), W),
    ),
}

WHOLE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "read as a whole, too": (
        lambda x, w: ((h := x @ w), h[:, :260] * jnp.tanh(h[:, 260:])),
        (X, W),
    ),
    "halves of what is computed": (
        lambda x, w: (h := jnp.sin(x) @ w)[:20] * jnp.tanh(h[20:]),
        (X, W),
    ),
    "halves of each head": (
        lambda x, w: (h := (x @ w).reshape(40, 2, 260))[..., :130] * jnp.tanh(h[..., 130:]),
        (X, W),
    ),
    "halves of short rows": (split, (X, W[:, :120], ROW[:120])),
    "thirds": (
        lambda x, w: (h := x @ w)[:, :40] * jnp.tanh(h[:, 40:80]),
        (X, W),
    ),
    "halves apart": (lambda x, w: tuple(jnp.split(x @ w, 2, axis=-1)), (X, W)),
}


def products(program: Program) -> int:
    return sum("dot_general" in kernel.operations for _, kernel in kernels(program))


@pytest.mark.parametrize("name", CASES)
def test_halves_are_products(name: str) -> None:
    function, arrays = CASES[name]
    tolerance = ROUNDED if arrays[0].dtype == jnp.bfloat16 else SUM
    program = check(jax.jit(function), *arrays, tolerance=tolerance)
    assert all("dot_general" in kernel.operations for _, kernel in kernels(program))
    assert products(program) == 2


@pytest.mark.parametrize("name", WHOLE)
def test_others_stay_whole(name: str) -> None:
    function, arrays = WHOLE[name]
    assert products(check(function, *arrays, tolerance=SUM)) == 1
