"""From the config.json of T5 to its models, and its architectures.

The table of defaults is what transformers takes for fields that a file leaves out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.architecture import Architecture
from models.settings import read_settings
from models.t5.config import T5Config
from models.t5.model import T5, T5Encoder
from models.t5.weights import HEAD, TABLE, encoder_table, key_table
from models.weights.fields import Fields, read_dtype
from models.weights.tied import stored_apart

# Version 1.1 was trained with the tanh approximation, whatever its config calls it.
ACTS = {"gelu": "gelu_new"}


def _read_config(fields: Fields) -> T5Config:
    dtype = read_dtype(fields)
    act, gated = _feed_forward(fields)
    # Transformers 4 tells version 1.1 by its head alone; 5 says that the output is not scaled, and
    # calls every head tied.
    tied = fields.flag("tie_word_embeddings")
    scale_logits = fields.flag("scale_decoder_outputs", tied)
    given = {
        "start_token": fields.integer("decoder_start_token_id", fields.integer("pad_token_id")),
        "act": act,
        "gated": gated,
        "tie_embeddings": tied and scale_logits,
        "scale_logits": scale_logits,
        "dtype": dtype,
        "param_dtype": dtype,
    }
    otherwise = {"num_decoder_layers": fields.positive("num_layers")}
    return T5Config(**read_settings(T5Config, fields, otherwise=otherwise, given=given))


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


_DEFAULTS = {
    "vocab_size": 32_128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,  # as many as the encoder has
    "num_heads": 8,
    "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "initializer_factor": 1.0,
    "feed_forward_proj": "relu",
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
ARCHITECTURES = (
    Architecture(
        name="T5ForConditionalGeneration",
        model_type="t5",
        family="t5",
        task="text2text-generation",
        read_config=_read_config,
        defaults=_DEFAULTS,
        model=T5,
        keys=key_table,
        refine=_refine,
    ),
    Architecture(
        name="T5EncoderModel",
        model_type="t5",
        family="t5",
        task="feature-extraction",
        read_config=_read_config,
        defaults=_DEFAULTS,
        model=T5Encoder,
        keys=encoder_table,
    ),
)
