"""Expert parallelism: each core of a mesh axis has some of the experts, and rows of its own.

Functions of one core's part, within a `jax.shard_map` region. Axis names as in
`models.layers.moe`; cores of the axis have E / cores experts each.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from models.layers.moe import Experts, Visit, assign, assign_all, mixed

AXIS = "expert"


@dataclass(frozen=True)
class ExpertParallel:
    """`models.layers.moe.mix` where the cores of the axis `expert` share the experts.

    With a capacity, tokens go to their experts' cores and back (all-to-all), in as many slots as
    the capacity is (Lepikhin et al., "GShard", 2021). Without one, any core may have to take all
    tokens, and shapes are static: so each core sees all tokens, and sums of what its experts make
    of theirs are added up and split again.
    """

    def __call__(
        self,
        experts: Experts,
        x: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
        visit: Visit,
    ) -> jax.Array:
        """x [B, T, D], weights and chosen [B, T, K] -> FP32 [B, T, D]."""
        if experts.capacity_factor is None:
            return _all_visits(experts, x, weights, chosen, visit)
        blocks = assign(chosen, experts)

        def there_and_back(slots: jax.Array) -> jax.Array:
            slots = jax.lax.all_to_all(slots, AXIS, split_axis=0, concat_axis=1, tiled=True)
            made = visit(slots, None)
            return jax.lax.all_to_all(made, AXIS, split_axis=1, concat_axis=0, tiled=True)

        return mixed(experts, x, weights, blocks, there_and_back)


def _all_visits(
    experts: Experts, x: jax.Array, weights: jax.Array, chosen: jax.Array, visit: Visit
) -> jax.Array:
    cores = jax.lax.axis_size(AXIS)
    own = experts.count // cores
    x, weights, chosen = (
        jax.lax.all_gather(array, AXIS, axis=0, tiled=True) for array in (x, weights, chosen)
    )
    expert = chosen - jax.lax.axis_index(AXIS) * own
    expert = jnp.where((expert >= 0) & (expert < own), expert, own)
    blocks = assign_all(expert, own, share=cores)
    sums = mixed(experts, x, weights, blocks, lambda slots: visit(slots, blocks.expert))
    return jax.lax.psum_scatter(sums, AXIS, scatter_dimension=0, tiled=True)
