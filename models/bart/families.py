"""BART: from its config.json and its tensors to the model."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from models.architecture import Architecture
from models.bart.config import BartConfig
from models.bart.model import Bart
from models.errors import ConfigError
from models.weights.rows import FAIRSEQ_BLOCK, attention_rows, block_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.tied import refuse_own_head

BIAS = "final_logits_bias"
TABLE = "model.shared.weight"
_COPIES = (
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


def _stack(stack: str) -> Iterator[Row]:
    key, ours = f"model.{stack}.layers.{{i}}", f"{stack}.blocks.{{i}}"
    yield row(f"model.{stack}.embed_positions.weight", f"{stack}.position.table")
    yield from norm_rows(f"model.{stack}.layernorm_embedding", f"{stack}.embedding_norm")
    yield from block_rows(key, ours, FAIRSEQ_BLOCK)
    if stack == "decoder":
        yield from attention_rows(f"{key}.encoder_attn", f"{ours}.cross_attention")
        yield from norm_rows(f"{key}.encoder_attn_layer_norm", f"{ours}.cross_norm")


KEYS = KeyTable(
    (row(TABLE, "embedding.table"), *_stack("encoder"), *_stack("decoder")),
    renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),  # saved without the head
    ignored=(r"model\.(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight", BIAS),
    substitutes=tuple((TABLE, copy) for copy in _COPIES),
)


def _refine(config: BartConfig, tensors: Mapping[str, Any]) -> BartConfig:
    """Files hold a bias of the logits that nothing trains."""
    if BIAS in tensors and np.any(np.asarray(tensors[BIAS].view())):
        raise ConfigError(f"{BIAS} is not zero: only models without a logits bias are supported")
    return config


ARCHITECTURES = (
    Architecture.of(
        "BartForConditionalGeneration",
        BartConfig(),
        Bart,
        KEYS,
        task="text2text-generation",
        read=refuse_own_head,
        refine=_refine,
    ),
)
