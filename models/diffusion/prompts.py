"""What text encoders make of a prompt, for the denoiser.

Axis names: B texts, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.diffusion.kinds import LAST, MASKED_TEXT, PENULTIMATE, POOLED_AND_TEXT
from models.diffusion.parts import Pipeline
from models.parameters import merge
from models.pretrained import Pretrained


class Prompt(NamedTuple):
    """The inputs of the denoiser that depend on a prompt."""

    context: jax.Array  # [B, T, context_dim]
    pooled: jax.Array | None  # [B, P]
    seen: jax.Array | None = None  # bool [B, T]: False at padding; None: the denoiser sees it all


class Rows(NamedTuple):
    """Texts as one tokenizer gives them."""

    tokens: np.ndarray  # int32 [B, T]
    real: np.ndarray | None = None  # bool [B, T]: False at padding, for T5


def encode(pipeline: Pipeline, texts: Sequence[Rows]) -> Prompt:
    """The denoiser's inputs for a prompt, given as the rows of every tokenizer."""
    return READERS[pipeline.kind.reads](pipeline.encoders, texts)


def without_prompt(prompt: Prompt) -> Prompt:
    """Zeros in the shape of a prompt."""
    pooled = None if prompt.pooled is None else jnp.zeros_like(prompt.pooled)
    return prompt._replace(context=jnp.zeros_like(prompt.context), pooled=pooled)


Encoders = Sequence[Pretrained]


def _last(encoders: Encoders, texts: Sequence[Rows]) -> Prompt:
    """The states after the last norm."""
    (encoder,), (rows,) = encoders, texts
    return Prompt(_states(encoder, rows.tokens).hidden, None)


def _penultimate(encoders: Encoders, texts: Sequence[Rows]) -> Prompt:
    """The states before the last blocks, side by side, and the pooled text of the last encoder."""
    states = [_states(encoder, rows.tokens) for encoder, rows in zip(encoders, texts, strict=True)]
    context = jnp.concatenate([state.penultimate for state in states], axis=-1)
    return Prompt(context, states[-1].pooled)


def _pooled_and_text(encoders: Encoders, texts: Sequence[Rows]) -> Prompt:
    """The pooled text of CLIP, and T5's states, which see padding as they see words."""
    clip, t5 = encoders
    words, rows = texts
    return Prompt(_states(t5, rows.tokens), _states(clip, words.tokens).pooled)


def _masked_text(encoders: Encoders, texts: Sequence[Rows]) -> Prompt:
    """T5's states; neither T5 nor the denoiser sees padding."""
    (encoder,), (rows,) = encoders, texts
    seen = None if rows.real is None else jnp.asarray(rows.real)
    return Prompt(_states(encoder, rows.tokens, *([] if seen is None else [seen])), None, seen)


READERS: Mapping[str, Callable[[Encoders, Sequence[Rows]], Prompt]] = {
    LAST: _last,
    PENULTIMATE: _penultimate,
    POOLED_AND_TEXT: _pooled_and_text,
    MASKED_TEXT: _masked_text,
}


def _states(encoder: Pretrained, *inputs: Any) -> Any:
    return _encode(encoder.graph, encoder.parameters, *inputs)


@partial(jax.jit, static_argnums=0)
def _encode(graph: Any, parameters: Any, *inputs: jax.Array) -> Any:
    return merge(graph, parameters).encode(*inputs)
