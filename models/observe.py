"""What a model computes inside: the stream after every block, and where attention looks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.attention import Attend, Attention
from models.layers.masks import Visibility

BLOCKS = "blocks"  # the attribute of a stack with its blocks, one after the other
_WEIGHTS = "weights"


class Inside(NamedTuple):
    """The output of a call, and what was computed on the way; keys are paths in the model, such as
    `blocks.0` and `blocks.0.attention`, in the order of the blocks."""

    output: Any
    hidden: dict[str, jax.Array]  # of every block, [B, T, D] or [B, H, W, C]
    attentions: dict[str, jax.Array]  # of every attention, the weights FP32 [B, N, T, S]


def observe(model: nnx.Module, *inputs: Any, call: str = "__call__", **named: Any) -> Inside:
    """Calls a model, or its method `call`, and tells what is inside. Works within `jax.jit`.

    Attention is seen where it is a `models.layers.attention.Attention`; families with scores of
    their own (DeBERTa, Swin, LeViT) have hidden states alone.
    """
    attentions = [m for _, m in nnx.iter_modules(model) if isinstance(m, Attention)]
    mixes = [attention.mix for attention in attentions]
    for attention in attentions:
        attention.mix = partial(_noting, attention, attention.mix)
    try:
        method: Callable[..., Any] = getattr(model, call)
        captured = nnx.capture(method, nnx.Intermediate, method_outputs=nnx.Intermediate)
        output, noted = captured(*inputs, **named)
    finally:
        for attention, mix in zip(attentions, mixes, strict=True):
            attention.mix = mix
    flat = {path: variable.get_value()[0] for path, variable in noted.flat_state()}
    hidden = {
        path[:-1]: value[0] if isinstance(value, tuple) else value
        for path, value in flat.items()
        if path[-1] == "__call__" and path[-3:-2] == (BLOCKS,)
    }
    weights = {path[:-1]: value for path, value in flat.items() if path[-1] == _WEIGHTS}
    return Inside(output, _named(hidden), _named(weights))


def _named(values: dict[tuple[Any, ...], jax.Array]) -> dict[str, jax.Array]:
    ordered = sorted(values, key=lambda path: [(isinstance(p, int), str(p).zfill(8)) for p in path])
    return {".".join(map(str, path)): values[path] for path in ordered}


def _noting(
    attention: Attention,
    mix: Attend,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | Visibility | None,
    **named: Any,
) -> jax.Array:
    """As `mix`, which tells its weights too: they are what it makes of unit vectors."""
    count = keys.shape[1]
    units = jnp.broadcast_to(
        jnp.eye(count, dtype=jnp.float32)[:, None], (len(keys), count, keys.shape[2], count)
    )
    weights = mix(query.astype(jnp.float32), keys.astype(jnp.float32), units, mask, **named)
    attention.sow(nnx.Intermediate, _WEIGHTS, weights.transpose(0, 2, 1, 3))
    return mix(query, keys, values, mask, **named)
