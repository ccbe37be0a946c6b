"""Swin and Donut's encoder: from config.json and tensors to the model. Defaults are those of
transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.image_heads import classifier, image_architectures
from models.swin.config import SwinConfig
from models.swin.model import Swin
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import MEMORY_BLOCK, BlockNames, block_rows, dense_rows, norm_rows
from models.weights.table import row
from models.weights.transforms import CONV_2D

_THEIRS, _OURS = "encoder.layers.{s}", "stages.{s}"
_THEIR_BLOCK, _OUR_BLOCK = f"{_THEIRS}.blocks.{{b}}", f"{_OURS}.blocks.{{b}}"
_FILE_BLOCK = BlockNames(("attention.self.query", "attention.self.key", "attention.self.value"))
_ROWS = (
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
_IGNORED = (r".*(embeddings\.mask_token|relative_position_index)",)


def _donut(fields: Fields) -> Mapping[str, Any]:
    fields.refuse(
        "use_absolute_embeddings",
        False,
        why="Donut's encoder has no absolute position embeddings",
    )
    return {"final_norm": False}


_architectures = partial(
    image_architectures, config=SwinConfig(), model=Swin, heads=classifier(), family="swin"
)
ARCHITECTURES = (
    *_architectures("Swin", "swin", backbone=Backbone("swin.", _ROWS, _IGNORED)),
    *_architectures(
        "DonutSwin", "donut-swin", backbone=Backbone("donut.", _ROWS, _IGNORED), read=_donut
    ),
)
