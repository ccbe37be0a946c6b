"""The inner values of a model: the residual stream after every block, and the attention weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers.attention import Attend, Attention, AttentionCall

BLOCKS = "blocks"  # the attribute of a stack with its blocks, one after the other

Notes = dict[str, jax.Array]


class Inside(NamedTuple):
    """The output of a call and the values computed on the way, in order unless `jax.jit` sorts
    them. Keys are paths in the model, such as `blocks.0` and `blocks.0.attention`; a block that
    runs again gets the key `blocks.0#2`."""

    output: Any
    hidden: Notes  # of every block, [B, T, D] or [B, H, W, C]
    attentions: Notes  # of every attention, the weights FP32 [B, N, T, S]


def observe(model: nnx.Module, *inputs: Any, call: str = "__call__", **named: Any) -> Inside:
    """Calls a model, or its method `call`, and returns its inner values too. Works within
    `jax.jit`.

    Attention weights are recorded for `models.layers.attention.Attention`; families with other
    attention layers (DeBERTa, Swin, LeViT) give only hidden states.
    """
    hidden: Notes = {}
    attentions: Notes = {}
    with _watch_blocks(model, hidden, attentions):
        output = getattr(model, call)(*inputs, **named)
    return Inside(output, hidden, attentions)


@contextmanager
def _watch_blocks(model: nnx.Module, hidden: Notes, attentions: Notes) -> Iterator[None]:
    """While it lasts, blocks and attentions note what they compute."""
    modules = [(_name(path), module) for path, module in nnx.iter_modules(model)]
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for name, module in modules:
        attributes = vars(module)
        if isinstance(module, Attention):
            replaced.append((attributes, "mix", module.mix))
            attributes["mix"] = partial(_mix_noting, attentions, name, module.mix)
        blocks = attributes.get(BLOCKS)
        if isinstance(blocks, nnx.List):
            replaced.append((attributes, BLOCKS, blocks))
            inside = f"{name}.{BLOCKS}" if name else BLOCKS
            attributes[BLOCKS] = [
                _Block(block, partial(_note, hidden, f"{inside}.{i}"))
                for i, block in enumerate(blocks)
            ]
    try:
        yield
    finally:
        for attributes, attribute, value in reversed(replaced):
            attributes[attribute] = value


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _note(notes: Notes, name: str, value: jax.Array) -> None:
    again = sum(known.partition("#")[0] == name for known in notes)
    notes[f"{name}#{again + 1}" if again else name] = value


class _Block:
    """A block that tells its output, the first of several."""

    def __init__(self, block: Any, tell: Callable[[jax.Array], None]) -> None:
        self._block, self._tell = block, tell

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        output = self._block(*inputs, **named)
        self._tell(output[0] if isinstance(output, tuple) else output)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


def _mix_noting(
    notes: Notes,
    name: str,
    mix: Attend,
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    call: AttentionCall,
) -> jax.Array:
    """What `mix` gives; notes its weights, which are what it makes of unit vectors."""
    count = keys.shape[1]
    units = jnp.broadcast_to(
        jnp.eye(count, dtype=jnp.float32)[:, None], (len(keys), count, keys.shape[2], count)
    )
    weights = mix(query.astype(jnp.float32), keys.astype(jnp.float32), units, call)
    _note(notes, name, weights.transpose(0, 2, 1, 3))
    return mix(query, keys, values, call)
