"""A mixture of experts without a capacity: Gale et al., "MegaBlocks", 2022.

Axis names: N tokens, B blocks, E experts, D model width, F hidden width.
"""

from typing import Any

import jax
import jax.numpy as jnp
import nki
import nki.isa as nisa
import nki.language as nl

from models.kernels.cores import on_cores, own_part
from models.kernels.products import columns_of
from models.kernels.swiglu import store_swiglu
from models.kernels.tiles import ROWS, loaded, tile


@nki.jit
def blockwise_swiglu(x: Any, tokens: Any, experts: Any, gate: Any, up: Any, down: Any) -> Any:
    """Blocks of 128 rows of x, each through the gated feed-forward block of its expert.

    x [N, D]; int32 tokens [B · 128, 1], the row of x at every place, and int32 experts [B, 1];
    gate and up [E, D, F], down [E, F, D] -> [B · 128, D] of the dtype of x. Rows and weights are
    found at run time: rows by a gather, weights at an address in a register.
    """
    width = x.shape[1]
    y = nl.ndarray((tokens.shape[0], width), dtype=x.dtype, buffer=nl.shared_hbm)
    own = own_part(experts.shape[0])
    for block in nl.affine_range(own.start, own.stop):
        places = nl.ds(block * ROWS, ROWS)
        rows = loaded(tokens[places])
        data = tile((ROWS, width), x.dtype)
        nisa.dma_copy(dst=data, src=x.ap([[width, ROWS], [1, width]], vector_offset=rows))
        expert = loaded(experts[nl.ds(block, 1)])
        weights = [_of_expert(stack, expert) for stack in (gate, up, down)]
        store_swiglu(y[places], columns_of(data), *weights)
    return y


def _of_expert(stack: Any, expert: Any) -> Any:
    """The weights [P, Q] of an expert, a number in SBUF, in a stack [E, P, Q]."""
    _, rows, columns = stack.shape
    return stack.ap([[columns, rows], [1, columns]], scalar_offset=expert)


def mixture(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    down: jax.Array,
) -> jax.Array:
    """Σ weights · swiglu of a token's experts: x [N, D], integer experts and FP32 weights [N, K],
    weights of the experts as in `blockwise_swiglu` -> [N, D].

    The N · K pairs are put in order of their experts, and each expert's are filled up to blocks.
    """
    (count, chosen), total = experts.shape, gate.shape[0]
    pairs = count * chosen
    flat = experts.reshape(-1).astype(jnp.int32)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.bincount(flat, length=total)
    blocks_of = -(-sizes // ROWS)
    first_block, first_pair = (jnp.cumsum(n) - n for n in (blocks_of, sizes))
    sorted_experts = flat[order]
    within = jnp.arange(pairs) - first_pair[sorted_experts]
    places = first_block[sorted_experts] * ROWS + within
    blocks = -(-pairs // ROWS) + total  # at most: every expert has one that is not full
    tokens = jnp.zeros(blocks * ROWS, jnp.int32).at[places].set((order // chosen).astype(jnp.int32))
    ends = jnp.cumsum(blocks_of)
    of_block = jnp.searchsorted(ends, jnp.arange(blocks), side="right")
    of_block = jnp.minimum(of_block, total - 1).astype(jnp.int32)
    kernel = on_cores(blockwise_swiglu, len(of_block))
    y = kernel(x, tokens[:, None], of_block[:, None], gate, up, down)
    own = jnp.zeros(pairs, jnp.int32).at[order].set(places.astype(jnp.int32))
    parts = y[own].reshape(count, chosen, -1).astype(jnp.float32)
    return jnp.sum(parts * weights[..., None], axis=1).astype(x.dtype)
