"""YOLOS: from its config.json and its tensors to the model. Defaults are those of transformers."""

from models.image_heads import Head, image_architectures
from models.vit.families import body_rows
from models.weights.backbone import Backbone
from models.weights.rows import dense_rows
from models.weights.table import row
from models.yolos.config import YolosConfig
from models.yolos.model import Yolos

_BACKBONE = Backbone(
    "vit.",
    (
        *body_rows(),
        row("embeddings.detection_tokens", "detection_tokens"),
        row("encoder.mid_position_embeddings", "mid_positions"),
        row("encoder.interpolation.mid_position_embeddings", "mid_positions"),
    ),
)
_DETECTOR = Head(
    (
        *dense_rows("class_labels_classifier.layers.{i}", "classes.layers.{i}"),
        *dense_rows("bbox_predictor.layers.{i}", "boxes.layers.{i}"),
    ),
    ignored=(r"(vit\.)?pooler\..*",),
)

ARCHITECTURES = image_architectures(
    "Yolos", "yolos", YolosConfig(), Yolos, _BACKBONE, {"ForObjectDetection": _DETECTOR}
)
