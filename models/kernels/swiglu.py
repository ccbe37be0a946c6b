"""The gated feed-forward block: Shazeer, "GLU Variants Improve Transformer", 2020.

Axis names: N rows, D model width, F hidden width.
"""

from collections.abc import Callable
from typing import Any

import jax
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part, tiles_of, varying_as
from models.kernels.products import BLOCK, add_up, columns_of_rows, loaded_weights
from models.kernels.tiles import ROWS, extent, parts, rows_from, tile

ROW_CHOICES = (512, 256, 128)
"""How many rows may share each load of the weights; a product has as many columns."""

MOST_BYTES = 176 << 10
"""Bytes of a partition of SBUF for the rows of one load and what is made of them."""


@nki.jit
def swiglu_kernel(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """(silu(x · gate) · (x · up)) · down.

    x [N, D], gate and up [D, F], down [F, D] -> [N, D] of the dtype of x. Programs share the rows.
    Weights pass through SBUF once for up to 512 rows; hidden numbers never leave it. They are made
    transposed, 128 of them for all rows, which is how the product with `down` takes them.
    """
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    own = own_part(x.shape[0], ROWS)
    step = rows_per_load(x.shape[1], gate.shape[1], bytes_of(x.dtype)) or ROWS
    for rows in parts(own.stop, step, own.start):
        store_swiglu(y[rows], columns_of_rows(x, rows), gate, up, down)
    return y


def store_swiglu(y: Any, columns: list[Any], gate: Any, up: Any, down: Any) -> None:
    """Stores a SwiGLU of up to 512 rows: y [P, D] and weights in HBM, parts of xᵀ in SBUF."""
    hidden_width = gate.shape[1]
    all_hidden = tile((ROWS, -(-hidden_width // ROWS), y.shape[0]), y.dtype)
    for first in nl.affine_range(0, hidden_width, BLOCK):
        block = rows_from(first, hidden_width, BLOCK)
        gates, ups = (loaded_weights(weights, block) for weights in (gate, up))
        for part in parts(extent(block)):
            place = all_hidden[: extent(part), (first + part.start) // ROWS]
            _store_hidden(place, columns, gates, ups, part)
    hidden = [all_hidden[: extent(p), p.start // ROWS] for p in parts(hidden_width)]
    for first in nl.affine_range(0, y.shape[1], BLOCK):
        block = rows_from(first, y.shape[1], BLOCK)
        weights = loaded_weights(down, block)
        for rows in parts(y.shape[0]):
            result = tile((extent(rows), extent(block)), y.dtype)
            nisa.tensor_copy(result, add_up([part[:, rows] for part in hidden], weights))
            nisa.dma_copy(dst=y[rows, block], src=result)


def _store_hidden(
    hidden: Any, columns: list[Any], gates: list[Any], ups: list[Any], part: slice
) -> None:
    """(silu(x · gate) · (x · up))ᵀ of a part of the hidden width, to [P, rows] of SBUF."""
    gated, others = (add_up([w[:, part] for w in weights], columns) for weights in (gates, ups))
    active = tile(gated.shape)
    nisa.activation(active, nl.silu, gated)
    nisa.tensor_tensor(hidden, active, others, nl.multiply)


def rows_per_load(width: int, hidden: int, itemsize: int) -> int:
    """The most rows that can share each load of weights [D, F] of `itemsize` bytes a number, with
    all that they need in SBUF; 0: not even 128 fit."""

    def needed(rows: int) -> int:
        """Bytes while hidden numbers are made, and while they are multiplied with `down`."""
        made = width * (rows + 2 * BLOCK) + hidden * rows
        return max(made, hidden * (rows + BLOCK)) * itemsize // ROWS

    return next((rows for rows in ROW_CHOICES if needed(rows) <= MOST_BYTES), 0)


def bytes_of(dtype: Any) -> int:
    """Bytes of a number of this dtype."""
    return 2 if dtype in (nl.bfloat16, nl.float16) else 4


def fits(width: int, hidden: int, itemsize: int) -> bool:
    """Whether SBUF holds what the kernel needs for weights [D, F] and numbers of so many bytes."""
    return rows_per_load(width, hidden, itemsize) > 0


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """(silu(x · gate) · (x · up)) · down: x [..., D], gate and up [D, F], down [F, D] -> [..., D].

    The kernel computes the value where no gradient is asked for. Where one is, value and gradient
    are the compiler's own code, which keeps what both need and is faster.
    """
    return _swiglu(x, *varying_as(x, gate, up, down))


def _compose(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


@jax.custom_vjp
def _swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    rows = x.reshape(-1, x.shape[-1])
    return on_cores(swiglu_kernel, tiles_of(len(rows)))(rows, gate, up, down).reshape(x.shape)


Gradients = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _forward(
    x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], Gradients]]:
    return jax.vjp(_compose, x, gate, up, down)


def _backward(gradients: Callable[[jax.Array], Gradients], of_y: jax.Array) -> Gradients:
    return gradients(of_y)


_swiglu.defvjp(_forward, _backward)
