"""Our side: what each head computes of a loaded model, by the names of the reference."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from models.losses import cross_entropy
from tests.models.parity import media_ours, text_ours

Outputs = Mapping[str, jax.Array]


def _text_generation(model: Any, tokens: jax.Array) -> Outputs:
    logits = model(tokens)
    return {"logits": logits, "loss": jnp.mean(cross_entropy(logits[:, :-1], tokens[:, 1:]))}


HEADS: Mapping[str, Callable[..., Outputs]] = {
    "text-generation": _text_generation,
    **text_ours.HEADS,
    **media_ours.HEADS,
}
