"""YOLOS: from its config.json to the model. Defaults are those of transformers."""

from models.image_heads import BACKBONE, image_architectures
from models.yolos.config import YolosConfig
from models.yolos.model import Yolos
from models.yolos.weights import key_table

ARCHITECTURES = image_architectures(
    "Yolos",
    "yolos",
    YolosConfig(),
    Yolos,
    key_table,
    heads={BACKBONE: {}, "ForObjectDetection": {}},
)
