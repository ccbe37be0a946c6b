"""Key table of YOLOS: the tensors of Hugging Face checkpoints and their parameters."""

from models.vit.weights import body_rows
from models.weights.backbone import backbone_table
from models.weights.rows import dense_rows
from models.weights.table import KeyTable, row
from models.yolos.config import YolosConfig

_OWN = (
    row("embeddings.detection_tokens", "detection_tokens"),
    row("encoder.mid_position_embeddings", "mid_positions"),
    row("encoder.interpolation.mid_position_embeddings", "mid_positions"),
)
_HEADS = (
    *dense_rows("class_labels_classifier.layers.{i}", "classes.layers.{i}"),
    *dense_rows("bbox_predictor.layers.{i}", "boxes.layers.{i}"),
)


def key_table(config: YolosConfig) -> KeyTable:
    """The table for one config: with heads, the backbone's keys have a prefix."""
    has_heads = config.num_labels is not None
    return backbone_table(
        "vit.",
        (*body_rows(has_pooler=not has_heads), *_OWN),
        _HEADS if has_heads else None,
        unread=r"(class_labels_classifier|bbox_predictor)\..*",
        ignored=(r"(vit\.)?pooler\..*",) if has_heads else (),
    )
