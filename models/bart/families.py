"""BART and Marian: from their config.json and tensors to the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.architecture import Architecture
from models.bart.config import BartConfig
from models.bart.model import Bart
from models.weights.fields import Fields
from models.weights.rows import FAIRSEQ_BLOCK, attention_rows, block_rows, norm_rows
from models.weights.table import KeyTable, Row, row
from models.weights.tied import refuse_own_head
from models.weights.transforms import Leading

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


def _keys(config: BartConfig) -> KeyTable:
    bias = (row(BIAS, "head_bias", Leading(1)),) if config.logits_bias else ()
    return KeyTable(
        (row(TABLE, "embedding.table"), *bias, *_stack("encoder"), *_stack("decoder")),
        renames=((r"^(shared|encoder|decoder)\.", r"model.\1."),),  # saved without the head
        ignored=(
            r"model\.(encoder|decoder)\.embed_tokens\.weight",
            r"lm_head\.weight",
            *(() if config.logits_bias else (BIAS,)),
            *(() if config.learned_positions else (r".*\.embed_positions\.weight",)),
        ),
        substitutes=tuple((TABLE, copy) for copy in _COPIES),
    )


def _refine(config: BartConfig, tensors: Mapping[str, Any]) -> BartConfig:
    """Most files hold a bias of the logits that is zero."""
    has_bias = BIAS in tensors and bool(np.any(np.asarray(tensors[BIAS].view())))
    return replace(config, logits_bias=has_bias)


def _marian(fields: Fields) -> Mapping[str, Any]:
    fields.refuse(
        "share_encoder_decoder_embeddings", True, why="only a common vocabulary is supported"
    )
    refuse_own_head(fields)
    return {"learned_positions": False, "embedding_norm": False}


_Read = Callable[[Fields], Mapping[str, Any] | None]
_CLASSES: Sequence[tuple[str, str, BartConfig, _Read]] = (
    ("BartForConditionalGeneration", "bart", BartConfig(), refuse_own_head),
    ("MarianMTModel", "marian", BartConfig(vocab_size=58_101, start_token=58_100), _marian),
)
ARCHITECTURES = tuple(
    Architecture.of(
        name,
        config,
        Bart,
        _keys,
        model_type=model_type,
        task="text2text-generation",
        read=read,
        refine=_refine,
    )
    for name, model_type, config, read in _CLASSES
)
