"""The gated feed-forward block: Shazeer, "GLU Variants Improve Transformer", 2020.

Axis names: N rows, D model width, F hidden width.
"""

from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part, tiles_of, varying_as
from models.kernels.products import BLOCK, add_up, columns_of_rows, loaded_weights
from models.kernels.swiglu_backward import swiglu_gradients
from models.kernels.swiglu_rows import bytes_of, rows_of_gradients, rows_of_value
from models.kernels.tiles import ROWS, extent, parts, rows_from, tile


@nki.jit
def swiglu_kernel(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """(silu(x · gate) · (x · up)) · down.

    x [N, D], gate and up [D, F], down [F, D] -> [N, D] of the dtype of x. Programs share the rows.
    Weights pass through SBUF once for up to 512 rows; hidden numbers never leave it. They are made
    transposed, 128 of them for all rows, which is how the product with `down` takes them.
    """
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    own = own_part(x.shape[0], ROWS)
    step = rows_of_value(x.shape[1], gate.shape[1], bytes_of(x.dtype)) or ROWS
    for rows in parts(own.stop, step, own.start):
        store_swiglu(y[rows], columns_of_rows(x, rows), gate, up, down)
    return y


def store_swiglu(y: Any, columns: list[Any], gate: Any, up: Any, down: Any) -> None:
    """Of up to 512 rows: y [P, D] and the weights in HBM, the parts of xᵀ in SBUF."""
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


def fits(width: int, hidden: int, itemsize: int) -> bool:
    """Whether SBUF holds what the kernels need for weights [D, F] and numbers of so many bytes."""
    rows = rows_of_value(width, hidden, itemsize), rows_of_gradients(width, itemsize)
    return min(rows) > 0


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """(silu(x · gate) · (x · up)) · down: x [..., D], gate and up [D, F], down [F, D] -> [..., D].

    Kernels make the values, and the gradients of x and of the hidden numbers; the gradients of the
    weights are products of these, which the compiler makes.
    """
    return _swiglu(x, *varying_as(x, gate, up, down))


@jax.custom_vjp
def _swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    rows = x.reshape(-1, x.shape[-1])
    return on_cores(swiglu_kernel, tiles_of(len(rows)))(rows, gate, up, down).reshape(x.shape)


Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def _forward(
    x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array
) -> tuple[jax.Array, Saved]:
    return _swiglu(x, gate, up, down), (x, gate, up, down)


def _backward(saved: Saved, gradient: jax.Array) -> Saved:
    x, gate, up, down = saved
    rows, of_rows = (a.reshape(-1, x.shape[-1]) for a in (x, gradient))
    kernel = on_cores(swiglu_gradients, tiles_of(len(rows)))
    of_x, hidden, of_gated, of_others = kernel(rows, gate, up, down, of_rows)
    pairs = (rows, of_gated), (rows, of_others), (hidden, of_rows)
    of_weights = (
        jnp.matmul(left.T, right, preferred_element_type=jnp.float32) for left, right in pairs
    )
    of_gate, of_up, of_down = (a.astype(x.dtype) for a in of_weights)
    return of_x.reshape(x.shape), of_gate, of_up, of_down


_swiglu.defvjp(_forward, _backward)
