"""Operations that read values without elements, against XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.program.verify import verify
from tests.lower.differential import check

NONE = np.zeros((0,), np.float32)
ROWS = np.zeros((0, 3), np.float32)
PLACES = np.zeros((0,), np.int32)
X = np.arange(6, dtype=np.float32)

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "all of nothing": (lambda e: jnp.all(e > 0), (NONE,)),
    "concatenation": (lambda e, x: jnp.concatenate([e, x, e]), (NONE, X)),
    "concatenation with a reshape": (
        lambda e, x: jnp.concatenate([e.reshape(-1), x, (e + 1).T.reshape(-1), x * 2]),
        (ROWS, X),
    ),
    "padding by nothing": (lambda x: jnp.pad(x, 0, mode="maximum"), (X,)),
    "constant": (lambda x: (jnp.zeros((0, 3)), x), (X,)),
    "convolution": (
        lambda a, b: lax.conv_general_dilated(a, b, (1,), "SAME"),
        (np.zeros((1, 0, 5), np.float32), np.zeros((2, 0, 3), np.float32)),
    ),
    "gather": (lambda x, i: (x[i], x), (X, PLACES)),
    "greatest": (lambda e: jnp.max(e, initial=-1.0), (NONE,)),
    "loop": (
        lambda e, x: lax.fori_loop(0, 3, lambda i, c: (c[0] * 2, c[1] + 1), (e, x)),
        (NONE, X),
    ),
    "padding": (lambda e: jnp.pad(e, (2, 3), constant_values=4), (NONE,)),
    "product": (lambda rows: rows.T @ rows, (ROWS,)),
    "random numbers": (lambda x: (jax.random.normal(jax.random.key(0), (0, 3)), x), (X,)),
    "scatter": (lambda e, i: jax.ops.segment_sum(e, i, 4), (NONE, PLACES)),
    "sort": (lambda e, x: (jnp.sort(e), jnp.argsort(e), x), (NONE, X)),
    "sums": (lambda rows: (rows.sum(0), rows.prod()), (ROWS,)),
    "update": (lambda x, e: lax.dynamic_update_slice(x, e, (2,)), (X, NONE)),
    "scatter of all": (
        lambda x, i: lax.scatter_add(x, i, x * 2, lax.ScatterDimensionNumbers((0,), (), ())),
        (X, PLACES),
    ),
    "gather of all": (
        lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((0,), (), ()), (4,)),
        (X, PLACES),
    ),
    "windows": (lambda e: lax.reduce_window(e, 0.0, lax.add, (2,), (1,), [(2, 2)]), (NONE,)),
}


@pytest.mark.parametrize("name", CASES)
def test_empty(name: str) -> None:
    function, arguments = CASES[name]
    assert verify(check(function, *arguments)) == ()
