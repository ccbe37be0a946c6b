"""What the layers of a model see of a text."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.layers.attention import Attention, AttentionCall, dot_product_attention
from models.layers.linear import Linear
from models.parameters import merge
from models.pretrained import Pretrained


class Seen(NamedTuple):
    """Statistics of the inputs and caches of a model's modules, by their paths."""

    inputs: dict[str, Any]  # of linear maps: mean squares FP32 [*in_axes]
    caches: dict[str, Any]  # of attention: largest magnitudes of keys and of values, FP32 [2]


@dataclass
class _Observer:
    """A `Matmul` and an `Attend` that note what passes."""

    path: str
    seen: Seen
    history_length: int = field(default=0)

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: None) -> jax.Array:
        batch = tuple(range(x.ndim - axes))
        self.seen.inputs[self.path] = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=batch)
        return jnp.tensordot(x, kernel, axes=axes)

    def mix(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, call: AttentionCall
    ) -> jax.Array:
        largest = [jnp.max(jnp.abs(cache)).astype(jnp.float32) for cache in (keys, values)]
        self.seen.caches[self.path] = jnp.stack(largest)
        return dot_product_attention(query, keys, values, call)


def observe(model: Pretrained, batches: Iterable[np.ndarray]) -> Seen:
    """Returns statistics of a decoder's layers over batches of tokens [B, T]: means of squares of
    inputs, and the largest magnitudes of keys and values."""
    total: Seen | None = None
    count = 0
    for tokens in batches:
        seen = jax.device_get(_observe_tokens(model.graph, model.parameters, tokens))
        count += 1
        if total is None:
            total = seen
            continue
        total = Seen(
            {path: total.inputs[path] + mean for path, mean in seen.inputs.items()},
            {
                path: np.maximum(total.caches[path], largest)
                for path, largest in seen.caches.items()
            },
        )
    assert total is not None
    return Seen({path: mean / count for path, mean in total.inputs.items()}, total.caches)


@partial(jax.jit, static_argnums=0)
def _observe_tokens(graph: nnx.GraphDef[Any], parameters: Any, tokens: jax.Array) -> Seen:
    model, seen = merge(graph, parameters), Seen({}, {})
    for path, module in nnx.iter_modules(model):
        observer = _Observer(".".join(map(str, path)), seen)
        if isinstance(module, Linear):
            module.matmul = observer
        if isinstance(module, Attention):
            module.mix = observer.mix
    model(tokens)
    return seen
