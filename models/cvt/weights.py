"""Key table of CvT: the tensors of Hugging Face checkpoints and their parameters."""

from models.cvt.config import CvtConfig
from models.weights.backbone import backbone_table
from models.weights.rows import (
    BlockNames,
    block_rows,
    conv_norm_rows,
    dense_rows,
    norm_rows,
)
from models.weights.table import KeyTable, row
from models.weights.transforms import CONV_2D

_THEIRS, _OURS = "encoder.stages.{s}", "stages.{s}"
_THEIR_BLOCK, _OUR_BLOCK = f"{_THEIRS}.layers.{{b}}", f"{_OURS}.blocks.{{b}}"
_PARTS = ("query", "key", "value")
_BLOCK = BlockNames(
    (
        "attention.attention.projection_query",
        "attention.attention.projection_key",
        "attention.attention.projection_value",
    )
)
_BODY = (
    *dense_rows(
        f"{_THEIRS}.embedding.convolution_embeddings.projection", f"{_OURS}.patches", CONV_2D
    ),
    *norm_rows(f"{_THEIRS}.embedding.convolution_embeddings.normalization", f"{_OURS}.patch_norm"),
    row(f"{_THEIRS}.cls_token", f"{_OURS}.class_token"),
    *(
        line
        for part in _PARTS
        for line in conv_norm_rows(
            f"{_THEIR_BLOCK}.attention.attention.convolution_projection_{part}"
            ".convolution_projection",
            f"{_OUR_BLOCK}.{part}",
        )
    ),
    *block_rows(_THEIR_BLOCK, _OUR_BLOCK, _BLOCK),
)
_HEAD = (*norm_rows("layernorm", "norm"), *dense_rows("classifier", "classifier"))


def key_table(config: CvtConfig) -> KeyTable:
    """The table for one config: with a head, the backbone's keys have a prefix."""
    return backbone_table(
        "cvt.",
        _BODY,
        None if config.num_labels is None else _HEAD,
        unread=r"(classifier|layernorm)\..*",
        ignored=(r".*\.num_batches_tracked",),
    )
