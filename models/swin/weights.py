"""Key table of Swin: the tensors of Hugging Face checkpoints and their parameters."""

from models.swin.config import SwinConfig
from models.weights.backbone import backbone_table
from models.weights.rows import MEMORY_BLOCK, BlockNames, block_rows, dense_rows, norm_rows
from models.weights.table import KeyTable, row
from models.weights.transforms import CONV_2D

_THEIRS, _OURS = "encoder.layers.{s}", "stages.{s}"
_THEIR_BLOCK, _OUR_BLOCK = f"{_THEIRS}.blocks.{{b}}", f"{_OURS}.blocks.{{b}}"
_FILE_BLOCK = BlockNames(("attention.self.query", "attention.self.key", "attention.self.value"))
_BODY = (
    *dense_rows("embeddings.patch_embeddings.projection", "patches", CONV_2D),
    *norm_rows("embeddings.norm", "patch_norm"),
    row("embeddings.position_embeddings", "positions"),
    *block_rows(_THEIR_BLOCK, _OUR_BLOCK, _FILE_BLOCK),
    *block_rows(_THEIR_BLOCK, _OUR_BLOCK, MEMORY_BLOCK),
    *(
        row(f"{_THEIR_BLOCK}.attention.{part}_bias_table", f"{_OUR_BLOCK}.relative.table")
        for part in ("self.relative_position", "relative_position_bias.relative_position")
    ),
    *norm_rows(f"{_THEIRS}.downsample.norm", f"{_OURS}.merging.norm"),
    *dense_rows(f"{_THEIRS}.downsample.reduction", f"{_OURS}.merging.reduction"),
    *norm_rows("layernorm", "norm"),
)


def key_table(prefix: str, config: SwinConfig) -> KeyTable:
    """The table for one config; `prefix` is that of the backbone's keys beside a classifier."""
    return backbone_table(
        prefix,
        _BODY,
        None if config.num_labels is None else dense_rows("classifier", "classifier"),
        unread=r"classifier\..*",
        ignored=(r".*(embeddings\.mask_token|relative_position_index)",),
    )
