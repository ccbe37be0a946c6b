"""From the config.json of T5 to its models, and its architectures.

Defaults are what transformers takes for fields that a file leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.t5.config import T5Config
from models.t5.model import T5, T5Encoder
from models.t5.weights import HEAD, TABLE, encoder_table, key_table
from models.weights.fields import Fields
from models.weights.tied import stored_apart

# Version 1.1 was trained with the tanh approximation, whatever its config calls it.
ACTS = {"gelu": "gelu_new"}


def _read(fields: Fields) -> Mapping[str, Any]:
    act, gated = _feed_forward(fields)
    # Transformers 4 tells version 1.1 by its head alone; 5 says that the output is not scaled, and
    # calls every head tied.
    tied = fields.flag("tie_word_embeddings")
    scale_logits = fields.flag("scale_decoder_outputs", tied)
    return {
        "start_token": fields.integer("decoder_start_token_id", fields.integer("pad_token_id")),
        "num_decoder_layers": fields.integer("num_decoder_layers", fields.positive("num_layers")),
        "act": act,
        "gated": gated,
        "tie_embeddings": tied and scale_logits,
        "scale_logits": scale_logits,
    }


def _feed_forward(fields: Fields) -> tuple[str, bool]:
    """The activation, and whether it is a gate."""
    text = fields.text("feed_forward_proj")
    gated, _, act = text.rpartition("-")
    if gated not in ("", "gated"):
        raise fields.fail("feed_forward_proj", "it must be an activation or gated-<activation>")
    return (ACTS.get(act, act) if gated else act), bool(gated)


def _refine(config: T5Config, tensors: Mapping[str, Any]) -> T5Config:
    """A head of its own is one that is stored: with other numbers than the embedding, or at all if
    the outputs are not scaled."""
    if config.scale_logits:
        is_tied = config.tie_embeddings and not stored_apart(tensors, TABLE, HEAD)
        return replace(config, tie_embeddings=is_tied)
    return replace(config, tie_embeddings=HEAD not in tensors)


_architecture = partial(Architecture.of, config=T5Config(), read=_read)
ARCHITECTURES = (
    _architecture(
        "T5ForConditionalGeneration",
        model=T5,
        keys=key_table,
        task="text2text-generation",
        refine=_refine,
    ),
    _architecture("T5EncoderModel", model=T5Encoder, keys=encoder_table, task="feature-extraction"),
)
