"""Relative positions as a bias of the attention scores: of a text (Raffel et al., "T5", 2020), and
of the patches of an image.

Distances in a text are key slot minus query slot. Near ones have a bucket each, far ones share
buckets whose width grows with the logarithm of the distance.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.factory import LayerFactory


def buckets_of_distances(num_buckets: int, max_distance: int, *, bidirectional: bool) -> np.ndarray:
    """The buckets of the distances -max_distance … max_distance, int32; farther ones are as these.

    Half of the buckets belong to keys after the query, if it may look at them.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    side = num_buckets // 2 if bidirectional else num_buckets
    after = np.where(distances > 0, side, 0) if bidirectional else 0
    far = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    exact = side // 2
    # FP32 as in the original: where the logarithm is a whole number, the last bit decides.
    ratio = np.maximum(far, exact).astype(np.float32) / np.float32(exact)
    growth = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(side - exact)
    shared = np.minimum(exact + growth.astype(np.int32), side - 1)
    return (after + np.where(far < exact, far, shared)).astype(np.int32)


class RelativeBias(nnx.Module):
    """A bias per bucket and head, the same in every layer."""

    def __init__(
        self,
        num_heads: int,
        make: LayerFactory,
        *,
        num_buckets: int,
        max_distance: int,
        bidirectional: bool,
    ) -> None:
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self.table = make.table(buckets=num_buckets, heads=num_heads)

    def __call__(self, query_slots: jax.Array, key_slots: jax.Array) -> jax.Array:
        """The bias [N, T, S], FP32, of queries in slots [T] and keys in slots [S]; with slots of
        each row [B, T], [B, N, T, S]."""
        buckets = buckets_of_distances(
            self.num_buckets, self.max_distance, bidirectional=self.bidirectional
        )
        by_distance = self.table[...].astype(jnp.float32)[buckets]  # [2 · max_distance + 1, N]
        distances = key_slots - query_slots[..., None]
        places = jnp.clip(distances, -self.max_distance, self.max_distance) + self.max_distance
        return jnp.moveaxis(by_distance[places], -1, -3)


def places_in_window(height: int, width: int, *, class_token: bool) -> np.ndarray:
    """The row of a table of biases for each query and key, patches of a window row by row: one row
    for each distance in both directions. With a class token in front of the patches [1 + H·W, 1 +
    H·W], three more rows are: the class token looks at patches, they look at it, it looks at
    itself."""
    rows, columns = (axis.ravel() for axis in np.indices((height, width)))
    down = rows[:, None] - rows + height - 1
    right = columns[:, None] - columns + width - 1
    places = down * (2 * width - 1) + right
    if not class_token:
        return places
    count = (2 * height - 1) * (2 * width - 1)
    places = np.pad(places, ((1, 0), (1, 0)), constant_values=count)
    places[1:, 0], places[0, 0] = count + 1, count + 2
    return places


def distances(grid: int, stride: int) -> np.ndarray:
    """Which distance, whatever its signs, is between queries, which are `stride` apart, and keys on
    a square grid: numbers [queries, keys]."""
    keys = np.arange(grid)
    apart = np.abs(keys[::stride, None] - keys)
    numbers = apart[:, None, :, None] * grid + apart[None, :, None, :]
    return numbers.reshape(len(apart) ** 2, -1)


class WindowBias(nnx.Module):
    """A bias per head and distance of two patches of a window. Bao et al., "BEiT", 2022."""

    def __init__(
        self, num_heads: int, window: tuple[int, int], make: LayerFactory, *, class_token: bool
    ) -> None:
        self.window, self.class_token = window, class_token
        height, width = window
        size = (2 * height - 1) * (2 * width - 1) + (3 if class_token else 0)
        self.table = make.table(buckets=size, heads=num_heads)

    def __call__(self) -> jax.Array:
        """[N, T, T], FP32, of the tokens of the window."""
        places = places_in_window(*self.window, class_token=self.class_token)
        return self.table[...].astype(jnp.float32)[places].transpose(2, 0, 1)
