"""Mixture of experts: a router picks a few gated MLPs per token.

Tokens are sorted into blocks of static shape, each for one expert, so that an expert is a few
batched matmuls. Axis names: N tokens, E experts, K experts per token, M blocks, C slots per block,
D model width, F width of an expert.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.activations import activation


@dataclass(frozen=True)
class Experts:
    """The dimensions of a mixture. Raises ConfigError if they do not fit together."""

    count: int  # experts
    per_token: int  # experts that each token visits
    hidden_dim: int  # width of one expert
    normalize: bool = True  # the weights of a token's experts sum to 1
    # None: every token visits all its experts (dropless). Otherwise an expert takes at most
    # capacity_factor · N · per_token / count tokens, and later ones skip it.
    capacity_factor: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.per_token <= self.count:
            raise ConfigError(
                f"each token is to visit {self.per_token} of {self.count} experts: choose a number "
                f"from 1 to {self.count}"
            )
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ConfigError(
                f"capacity_factor={self.capacity_factor} is not positive; use None for no limit"
            )


class MoE(nnx.Module):
    """y = Σ weight_e · down_e(act(gate_e(x)) · up_e(x)) over the experts e that the router picks.

    Shazeer et al., 2017; the weights are the softmax over all experts, in FP32.
    """

    def __init__(
        self,
        dim: int,
        experts: Experts,
        *,
        act: str,
        stddev: float,
        out_stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:

        def kernel(*shape: int, stddev: float) -> nnx.Param[jax.Array]:
            return nnx.Param(stddev * jax.random.normal(rngs.params(), shape, param_dtype))

        self.experts, self.act = experts, act
        self.router = kernel(dim, experts.count, stddev=stddev)
        self.experts_gate = kernel(experts.count, dim, experts.hidden_dim, stddev=stddev)
        self.experts_up = kernel(experts.count, dim, experts.hidden_dim, stddev=stddev)
        self.experts_down = kernel(experts.count, experts.hidden_dim, dim, stddev=out_stddev)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.route(tokens)
        blocks = assign(chosen, self.experts)
        # An assignment without a slot lies beyond the end: it is not written, and reads zeros.
        slots = jnp.zeros((blocks.number * blocks.size, tokens.shape[1]), tokens.dtype)
        visitors = jnp.repeat(tokens, self.experts.per_token, axis=0)
        slots = slots.at[blocks.slot].set(visitors, mode="drop", unique_indices=True)
        results = self._visit(slots.reshape(blocks.number, blocks.size, -1), blocks.expert)
        results = results.reshape(slots.shape).at[blocks.slot].get(mode="fill", fill_value=0)
        results = results.reshape(*chosen.shape, -1)  # [N, K, D]
        mixed = jnp.einsum("nk,nkd->nd", weights, results, preferred_element_type=jnp.float32)
        return mixed.astype(x.dtype).reshape(x.shape)

    def route(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """tokens [N, D] -> the weights, FP32, and numbers of each one's experts [N, K]."""
        logits = jnp.dot(tokens, self.router[...].astype(tokens.dtype))
        probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        weights, chosen = jax.lax.top_k(probabilities, self.experts.per_token)
        if self.experts.normalize:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return weights, chosen

    def _visit(self, x: jax.Array, expert: jax.Array | None) -> jax.Array:
        """Block m of x [M, C, D] through the expert [M] of its number, or through expert m."""
        gate, up, down = (
            (kernel if expert is None else kernel[expert]).astype(x.dtype)
            for kernel in (self.experts_gate[...], self.experts_up[...], self.experts_down[...])
        )
        hidden = activation(self.act)(jnp.einsum("mcd,mdf->mcf", x, gate))
        hidden = hidden * jnp.einsum("mcd,mdf->mcf", x, up)
        return jnp.einsum("mcf,mfd->mcd", hidden, down)


class Blocks(NamedTuple):
    """Where the tokens go: `number` blocks of `size` slots."""

    number: int
    size: int
    expert: jax.Array | None  # [number], the expert of each block; None: block m is expert m's
    slot: jax.Array  # [N · K], by token, then by choice; beyond the last slot if there is none


def assign(chosen: jax.Array, experts: Experts) -> Blocks:
    """Slots for the experts chosen [N, K], in the order of the tokens.

    With a capacity each expert has one block. Without, it has as many as it needs: blocks of the
    average load N·K / E, of which at most twice as many as experts are ever begun.
    """
    visits, count = chosen.size, experts.count
    expert, rank, load = _ranks(chosen.reshape(-1), count)
    if experts.capacity_factor is not None:
        size = max(1, round(experts.capacity_factor * visits / count))
        slot = jnp.where(rank < size, expert * size + rank, count * size)
        return Blocks(count, size, None, slot)
    size = -(-visits // count)
    num_blocks = min(visits, visits // size + count)
    ends = jnp.cumsum(-(-load // size))  # number of the block after each expert's last
    first = jnp.where(expert > 0, ends[expert - 1], 0)
    owner = jnp.searchsorted(ends, jnp.arange(num_blocks), side="right")
    owner = jnp.minimum(owner, count - 1)  # blocks that are not begun
    return Blocks(num_blocks, size, owner, (first + rank // size) * size + rank % size)


def _ranks(expert: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(expert, how many before it chose the same) [N · K], and each expert's load [E]."""
    load = jnp.zeros((count,), jnp.int32).at[expert].add(1)
    order = jnp.argsort(expert, stable=True)
    begins = jnp.cumsum(load) - load
    sorted_ranks = jnp.arange(expert.size, dtype=jnp.int32) - begins[expert[order]]
    return expert, jnp.zeros_like(sorted_ranks).at[order].set(sorted_ranks), load
