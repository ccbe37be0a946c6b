"""Mixture of experts: a router picks a few gated MLPs per token.

Tokens are sorted into blocks of static shape, each for one expert, so that an expert is a few
batched matmuls. Axis names: B rows, T positions, N = B·T tokens, E experts, K experts per token,
M blocks, C slots per block, D model width, F width of an expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.activations import activation
from models.layers.axes import make_bias
from models.layers.dropout import Dropout
from models.layers.mlp import GatedMLP
from models.layers.narrow import HasNarrow, Narrow, narrow_name
from models.layers.router_losses import RouterCharge


@dataclass(frozen=True)
class ClampedSwish:
    """(up + 1) · gate · sigmoid(alpha · gate), where |up| and gate are `limit` at most: that of
    gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025)."""

    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        """The gated activation of gate and up, in their shape."""
        gate = jnp.minimum(gate, self.limit)
        up = jnp.clip(up, -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(self.alpha * gate)


@dataclass(frozen=True)
class Experts:
    """The dimensions of a mixture. Raises ConfigError if they do not fit together."""

    count: int  # experts
    per_token: int  # experts that each token visits
    hidden_dim: int  # width of one expert
    normalize: bool = True  # the weights of a token's experts sum to 1
    # None: every token visits all its experts (dropless). Otherwise an expert takes at most
    # capacity_factor · T · per_token / count tokens of a row, and later ones skip it.
    capacity_factor: float | None = None
    biases: bool = False  # of the router and of the experts
    clamped: ClampedSwish | None = None  # in place of act(gate) · up
    # The weight of an expert is the sigmoid of its score, and multiplies what it reads, not what it
    # puts out (Llama 4).
    gated_inputs: bool = False
    shared_dim: int | None = None  # width of one more expert, which every token visits
    # DeepSeek's routers: scores are sigmoids instead of a softmax, `corrected` by a number of each
    # expert while experts are chosen, and a token's experts are of the best of several groups, of
    # which each counts by its best scores; the weights are multiplied by `factor`.
    sigmoid: bool = False
    corrected: bool = False
    groups: int = 1
    groups_per_token: int = 1
    scores_of_group: int = 1
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.per_token <= self.count:
            raise ConfigError(
                f"per_token={self.per_token} is out of range: choose from 1 to {self.count} "
                "experts per token"
            )
        if self.count % self.groups or not 0 < self.groups_per_token <= self.groups:
            raise ConfigError(
                f"groups={self.groups} with groups_per_token={self.groups_per_token} do not suit "
                f"{self.count} experts: groups must have as many experts each, and a token visits "
                "at most all of them"
            )
        if self.groups_per_token * (self.count // self.groups) < self.per_token:
            raise ConfigError(
                f"per_token={self.per_token} is more than the experts of groups_per_token="
                f"{self.groups_per_token} of groups={self.groups}"
            )
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ConfigError(
                f"capacity_factor={self.capacity_factor} must be positive; use None for no limit"
            )


# Tokens [M, C, D] in blocks, and the expert [M] of each (None: block m is expert m's) -> [M, C, D].
Visit = Callable[[jax.Array, jax.Array | None], jax.Array]


class Mix(Protocol):
    """A mixture of experts, as `mix` computes it or as several cores that share the experts do."""

    def __call__(
        self,
        experts: Experts,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        visit: Visit,
    ) -> jax.Array: ...


_EXPERTS = ("experts_gate", "experts_up", "experts_down")


class MoE(nnx.Module, HasNarrow):
    """y = Σ weight_e · down_e(act(gate_e(x)) · up_e(x)) over the experts e that the router picks.

    Shazeer et al., 2017; the weights are the softmax over all experts, in FP32. With gated inputs
    y = Σ expert_e(sigmoid(score_e) · x) instead. A shared expert adds what it makes of every token
    (Dai et al., "DeepSeekMoE", 2024).

    `mix`, the function of that name at first, takes tokens to experts and back. `experts_…_narrow`,
    None at first, make narrow kernels of the experts'. `axes`, () at first, are mesh axes whose
    cores have a part of each expert's width, and add up what they make. `router_charge`, None at
    first, is what its router is charged with in training. `dropout`, None at first, drops some of
    y.
    """

    mix: Mix
    axes: tuple[str, ...]
    router_charge: RouterCharge | None
    router_bias: nnx.Param[jax.Array] | None
    router_correction: nnx.Param[jax.Array] | None
    shared: GatedMLP | None
    dropout: Dropout | None

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

        def kernel(axes: Mapping[str, int], stddev: float = stddev) -> nnx.Param[jax.Array]:
            shape = tuple(axes.values())
            values = stddev * jax.random.normal(rngs.params(), shape, param_dtype)
            return nnx.Param(values, axes=tuple(axes))

        self.experts, self.act = experts, act
        self.mix, self.axes = mix, ()
        self.router_charge, self.dropout = nnx.data(None), nnx.data(None)
        count, outside = {"experts": experts.count}, {"dim": dim}
        inside = {"hidden_dim": experts.hidden_dim}
        self.router = kernel({"residual": dim, "choice": experts.count})
        self.experts_gate = kernel({**count, **outside, **inside})
        self.experts_up = kernel({**count, **outside, **inside})
        self.experts_down = kernel({**count, **inside, **outside}, out_stddev)
        biases: dict[str, Mapping[str, int]] = {
            "router_bias": {"choice": experts.count},
            "experts_gate_bias": {**count, **inside},
            "experts_up_bias": {**count, **inside},
            "experts_down_bias": {**count, **outside},
        }
        for name, axes in biases.items():
            bias = make_bias(axes, param_dtype) if experts.biases else None
            setattr(self, name, nnx.data(bias))
        self.router_correction = nnx.data(None)
        if experts.corrected:
            zeros = jnp.zeros((experts.count,), param_dtype)
            self.router_correction = nnx.data(nnx.Param(zeros, axes=("choice",)))
        for name in _EXPERTS:
            setattr(self, narrow_name(name), nnx.data(None))
        self.shared = nnx.data(None)
        if experts.shared_dim is not None:
            self.shared = GatedMLP(
                dim,
                experts.shared_dim,
                act=act,
                stddev=stddev,
                out_stddev=out_stddev,
                param_dtype=param_dtype,
                rngs=rngs,
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [B, T, D] -> [B, T, D]."""
        logits = self._scores(x)
        weights, chosen = self._choose(logits)
        y = self.mix(self.experts, x, weights, chosen, self._visit).astype(x.dtype)
        if self.router_charge is not None:
            y = self.router_charge.charge(y, logits, chosen, self.axes)
        y = y if self.shared is None else y + self.shared(x)
        return y if self.dropout is None else self.dropout(y)

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x [..., D] -> the weights, FP32, and numbers of each token's experts [..., K]."""
        return self._choose(self._scores(x))

    def _scores(self, x: jax.Array) -> jax.Array:
        """x [..., D] -> of all experts [..., E]."""
        logits = jnp.dot(x, self.router[...].astype(x.dtype))
        if self.router_bias is not None:
            logits = logits + self.router_bias[...].astype(x.dtype)
        return logits

    def _choose(self, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.experts.gated_inputs:
            scores, chosen = jax.lax.top_k(logits.astype(jnp.float32), self.experts.per_token)
            return jax.nn.sigmoid(scores), chosen
        experts, logits = self.experts, logits.astype(jnp.float32)
        scores = jax.nn.sigmoid(logits) if experts.sigmoid else jax.nn.softmax(logits, axis=-1)
        ranked = scores
        if self.router_correction is not None:
            ranked = ranked + jax.lax.stop_gradient(self.router_correction[...].astype(jnp.float32))
        if experts.groups > 1:
            ranked = _of_best_groups(ranked, experts)
        weights, chosen = jax.lax.top_k(ranked, experts.per_token)
        if self.router_correction is not None:
            weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if experts.normalize:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return (weights if experts.factor == 1 else weights * experts.factor), chosen

    def narrow_kernels(self) -> Mapping[str, tuple[int, bool]]:
        """The kernels of the experts, which may be narrow."""
        return dict.fromkeys(_EXPERTS, (1, True))

    def _visit(self, x: jax.Array, expert: jax.Array | None) -> jax.Array:
        kernels = (self._experts(name, x.dtype) for name in _EXPERTS)
        gate, up, down = (kernel if expert is None else kernel[expert] for kernel in kernels)
        before = self._biased("experts_gate", jnp.einsum("mcd,mdf->mcf", x, gate), expert)
        beside = self._biased("experts_up", jnp.einsum("mcd,mdf->mcf", x, up), expert)
        if self.experts.clamped is None:
            hidden = activation(self.act)(before) * beside
        else:
            hidden = self.experts.clamped(before, beside)
        share = 1 / jax.lax.axis_size(self.axes) if self.axes else 1
        return self._biased("experts_down", jnp.einsum("mcf,mfd->mcd", hidden, down), expert, share)

    def _biased(
        self, name: str, y: jax.Array, expert: jax.Array | None, share: float = 1
    ) -> jax.Array:
        """y [M, C, …] with that share of the biases of the blocks' experts."""
        biases: nnx.Param[jax.Array] | None = getattr(self, f"{name}_bias")
        if biases is None:
            return y
        own = biases[...] if expert is None else biases[...][expert]
        return y + share * own[:, None].astype(y.dtype)

    def _experts(self, name: str, dtype: DTypeLike) -> jax.Array:
        kernels: nnx.Param[jax.Array] | None = getattr(self, name)
        narrow: Narrow | None = getattr(self, narrow_name(name))
        if narrow is not None:
            return narrow.wide(None if kernels is None else kernels[...], dtype)
        assert kernels is not None
        return kernels[...].astype(dtype)


def _of_best_groups(scores: jax.Array, experts: Experts) -> jax.Array:
    """Scores [..., E], -inf for experts that are in none of a token's groups."""
    grouped = scores.reshape(*scores.shape[:-1], experts.groups, -1)
    best, _ = jax.lax.top_k(grouped, experts.scores_of_group)
    _, groups = jax.lax.top_k(jnp.sum(best, axis=-1), experts.groups_per_token)
    visited = jnp.any(groups[..., None] == jnp.arange(experts.groups), axis=-2)
    return jnp.where(visited[..., None], grouped, -jnp.inf).reshape(scores.shape)


def mix(
    experts: Experts, x: jax.Array, weights: jax.Array, chosen: jax.Array, visit: Visit
) -> jax.Array:
    """Σ weight · expert(x) over the experts chosen: x [B, T, D], weights and chosen [B, T, K] ->
    FP32 [B, T, D]."""
    blocks = assign(chosen, experts)
    return mixed(experts, x, weights, blocks, lambda slots: visit(slots, blocks.expert))


FEW_TOKENS = 128
"""Tokens that a systolic array multiplies with weights in the time in which these pass it."""


class Blocks(NamedTuple):
    """The blocks that tokens go to: `number` blocks of `size` slots."""

    number: int
    size: int
    expert: jax.Array | None  # [number], the expert of each block; None: block m is expert m's
    slot: jax.Array  # [N · K], by token, then by choice; beyond the last slot if there is none


def mixed(
    experts: Experts,
    x: jax.Array,
    weights: jax.Array,
    blocks: Blocks,
    visit: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """The weighted sums [B, T, D], FP32, of what `visit` makes of the slots [M, C, D] that tokens
    x [B, T, D] are put into; with gated inputs the sums of what it makes of weighted tokens."""
    tokens, per_token = x.reshape(-1, x.shape[-1]), weights.shape[-1]
    # An assignment without a slot lies beyond the end: it is not written, and reads zeros.
    slots = jnp.zeros((blocks.number * blocks.size, tokens.shape[1]), tokens.dtype)
    visitors = jnp.repeat(tokens, per_token, axis=0)
    if experts.gated_inputs:
        visitors = visitors * weights.reshape(-1, 1).astype(x.dtype)
        weights = jnp.ones_like(weights)
    slots = slots.at[blocks.slot].set(visitors, mode="drop", unique_indices=True)
    results = visit(slots.reshape(blocks.number, blocks.size, -1)).reshape(slots.shape)
    results = results.at[blocks.slot].get(mode="fill", fill_value=0)
    results = results.reshape(*weights.shape, -1)  # [B, T, K, D]
    return jnp.einsum("btk,btkd->btd", weights, results, preferred_element_type=jnp.float32)


def assign(chosen: jax.Array, experts: Experts) -> Blocks:
    """Slots for the experts chosen [B, T, K], in the order of the tokens.

    With a capacity each expert has one block, with as many slots for each row.
    """
    if experts.capacity_factor is None:
        return assign_all(chosen, experts.count)
    rows, visits = len(chosen), chosen[0].size
    size = max(1, round(experts.capacity_factor * visits / experts.count))
    expert, rank, _ = jax.vmap(lambda row: _ranks(row.reshape(-1), experts.count))(chosen)
    row = jnp.arange(rows)[:, None]
    slot = jnp.where(rank < size, (expert * rows + row) * size + rank, experts.count * rows * size)
    return Blocks(experts.count, rows * size, None, slot.reshape(-1))


def assign_all(chosen: jax.Array, count: int, *, share: int = 1) -> Blocks:
    """Slots for all visits chosen [..., K] to `count` experts, each of which has as many blocks as
    it needs: of the average load, of which at most twice as many as experts are ever begun.

    Visits with the number `count` are to others' experts, which are `share` times as many in all;
    they have no slot. Few tokens that may visit every expert are a block of each: no expert's
    weights are read twice, and reading them takes longer than the products.
    """
    visits, per_token = chosen.size, chosen.shape[-1]
    size = -(-visits // (count * share))
    tokens = visits // per_token
    most = tokens * min(per_token, count)
    num_blocks = min(most, most // size + count)
    if num_blocks >= count and tokens <= FEW_TOKENS:
        return _assign_few(chosen.reshape(-1), tokens, count)
    expert, rank, load = _ranks(chosen.reshape(-1), count + (share > 1))
    ends = jnp.cumsum(-(-load[:count] // size))  # number of the block after each expert's last
    first = jnp.where(expert > 0, ends[expert - 1], 0)
    owner = jnp.sum(jnp.arange(num_blocks)[:, None] >= ends, axis=1)
    owner = jnp.minimum(owner, count - 1)  # blocks that are not begun
    slot = (first + rank // size) * size + rank % size
    slot = jnp.where(expert < count, slot, num_blocks * size + rank)
    return Blocks(num_blocks, size, owner, slot)


def _assign_few(expert: jax.Array, tokens: int, count: int) -> Blocks:
    """A slot with each expert for every token; `expert` [N · K] by token, then by choice."""
    visit = jnp.arange(expert.size, dtype=jnp.int32)
    own = expert * tokens + visit // (expert.size // tokens)
    return Blocks(count, tokens, None, jnp.where(expert < count, own, count * tokens + visit))


def _ranks(expert: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(expert, how many before it chose the same) [N · K], and each expert's load [E]."""
    load = jnp.zeros((count,), jnp.int32).at[expert].add(1)
    order = jnp.argsort(expert, stable=True)
    begins = jnp.cumsum(load) - load
    sorted_ranks = jnp.arange(expert.size, dtype=jnp.int32) - begins[expert[order]]
    return expert, jnp.zeros_like(sorted_ranks).at[order].set(sorted_ranks), load
