"""The blocks of a model as a core runs them: weights are gathered for use, results are made again
in the backward pass, and blocks that are alike are compiled once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Primitive

from models.layers.attention import STATISTICS, Attend, Attention, AttentionCall
from models.layers.cache import StackedCaches
from models.layers.dropout import fold, set_block_dropout
from models.layers.mlp import GatedMLP
from models.layers.paged_cache import StackedPagedCaches
from models.layers.router_losses import RouterCharge, charge_routers
from models.parameters import Parameters, merge, split
from models.sharding import FULLY_SHARDED

STACKS = (StackedCaches, StackedPagedCaches)
"""Caches of all blocks of a stack."""

Gather = Callable[[str, jax.Array], jax.Array]  # a weight's path and a core's part -> for use

_policies = jax.checkpoint_policies


def _all_but_gathered(primitive: Primitive, *operands: Any, **parameters: Any) -> bool:
    """Whether a result is anything but a weight that was gathered for use: the backward pass
    gathers it again. To name it would not do, as what has the name is a copy of what is kept."""
    return primitive is not jax.lax.all_gather_p or FULLY_SHARDED not in parameters["axis_name"]


RECOMPUTATION: Mapping[str, Any] = {
    "none": _all_but_gathered,
    "selective": _policies.dots_with_no_batch_dims_saveable,
    "dots": _policies.dots_with_no_batch_dims_saveable,
    "full": _policies.nothing_saveable,
    "offload": _policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}
"""What of a block's forward pass is kept for its backward pass, by name: everything; everything but
attention scores (where weights are gathered for use: as dots); results of products with weights;
nothing but its input; as dots, in the memory of the host."""


@dataclass(frozen=True)
class BlockRun:
    """How blocks run."""

    recompute: str = "none"  # a name of RECOMPUTATION
    gather: Gather | None = None  # what weights pass before use
    share: Callable[[nnx.Module], None] | None = None  # changes a block that has a core's parts


class CoreBlock(nnx.Module):
    """A block [B, T, D] -> [B, T, D], or several that are alike, one after the other, whose
    weights are stacked."""

    keys: jax.Array | None
    count: jax.Array | None
    router_charge: RouterCharge | None

    def __init__(self, block: nnx.Module, prefix: str, run: BlockRun, *, stacked: bool) -> None:
        self.block, self.prefix, self.run, self.stacked = block, prefix, run, stacked
        self.keys: jax.Array | None = nnx.data(None)
        self.first: jax.Array | None = nnx.data(None)
        self.count: jax.Array | None = nnx.data(None)
        self.router_charge = nnx.data(None)

    def take_keys(self, keys: jax.Array) -> None:
        """Takes the keys of dropout, typed [B], of all blocks together."""
        self.keys = keys

    def take_place(self, first: jax.Array, count: jax.Array | None) -> None:
        """Takes the number of a stack's first block in the model, and how many blocks of it count,
        int32 []; the others behind them change nothing, but take as long."""
        self.first, self.count = first, count

    def __call__(self, x: jax.Array, *others: Any, **named: Any) -> Any:
        """All but `x` is passed on to the block, and the form of its result is kept."""
        graph, parameters = split(self.block)

        def apply(
            x: jax.Array,
            parameters: Parameters,
            number: Any,
            counts: Any = None,
            others: Sequence[Any] = others,
        ) -> Any:
            if self.run.gather is not None and not self.stacked:
                # Gather when the block before is done: weights gathered earlier would fill memory.
                x, parameters = jax.lax.optimization_barrier((x, parameters))
            block = merge(graph, self._for_use(parameters))
            if self.keys is not None:
                set_block_dropout(block, fold(self.keys, number))
            if (charge := self.router_charge) is not None:
                charge_routers(block, charge if counts is None else charge.where(counts))
            if self.run.share is not None:
                self.run.share(block)
            return block(x, *others, **named)

        policy = RECOMPUTATION[self.run.recompute]
        # Attention that makes its scores again does so itself (`keep_no_scores`): within a policy
        # that keeps everything, they would be kept.
        if self.run.recompute not in ("none", "selective") or self.run.gather is not None:
            # In a loop nothing can be made once for both passes.
            apply = jax.checkpoint(apply, policy=policy, prevent_cse=not self.stacked)
        if not self.stacked:
            return apply(x, parameters, int(self.prefix.rpartition(".")[2]))

        if any(isinstance(other, STACKS) for other in others):
            return self._with_caches(apply, x, parameters, others)

        form: Any = None

        def one_more(x: jax.Array, block: tuple[Parameters, jax.Array]) -> tuple[jax.Array, None]:
            nonlocal form
            weights, number = block
            place = number if self.first is None else self.first + number
            counts = None if self.count is None else number < self.count
            (result,), form = jax.tree.flatten(apply(x, weights, place, counts))
            if counts is not None:
                result = jnp.where(counts, result, x)
            return result, None

        result, _ = jax.lax.scan(one_more, x, (parameters, jnp.arange(self.size)))
        return jax.tree.unflatten(form, [result])

    @property
    def size(self) -> int:
        """How many blocks there are."""
        _, parameters = split(self.block)
        return len(next(iter(parameters.values()))) if self.stacked else 1

    def _with_caches(
        self, apply: Callable[..., Any], x: jax.Array, parameters: Parameters, others: Sequence[Any]
    ) -> tuple[jax.Array, StackedCaches | StackedPagedCaches]:
        """What a call gives of blocks that get one of stacked caches each and return it after x."""
        place = next(i for i, other in enumerate(others) if isinstance(other, STACKS))

        def one_more(carry: Any, block: tuple[Parameters, jax.Array]) -> tuple[Any, None]:
            (x, caches), (weights, number) = carry, block
            own = [*others[:place], caches.layer(number), *others[place + 1 :]]
            x, cache = apply(x, weights, number, None, own)
            return (x, caches.put(number, cache)), None

        (x, caches), _ = jax.lax.scan(
            one_more, (x, others[place]), (parameters, jnp.arange(self.size))
        )
        return x, caches

    def _for_use(self, parameters: Parameters) -> Parameters:
        if self.run.gather is None:
            return parameters
        gather = self.run.gather
        return {
            path: gather(f"{self.prefix}.{path}", weight) for path, weight in parameters.items()
        }


def keep_no_scores(model: nnx.Module) -> None:
    """Lets attention make its scores again in the backward pass."""
    policy = _policies.save_only_these_names(STATISTICS)
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            module.mix = _without_scores(module.mix, policy)


def fuse_projections(model: nnx.Module) -> None:
    """Lets self-attention make queries, keys and values by one product, and gated layers gate and
    up."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention | GatedMLP):
            module.fused = True


def _without_scores(mix: Attend, policy: Any) -> Attend:
    def remade(
        query: jax.Array, keys: jax.Array, values: jax.Array, call: AttentionCall
    ) -> jax.Array:
        seen = jax.checkpoint(lambda q, k, v: mix(q, k, v, call), policy=policy)
        return seen(query, keys, values)

    return remade
