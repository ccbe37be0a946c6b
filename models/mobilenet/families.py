"""MobileNetV2: from its config.json to the model. Defaults are those of transformers."""

from models.image_heads import SEGMENTER, image_architectures
from models.mobilenet.config import MobileNetConfig
from models.mobilenet.model import MobileNet
from models.mobilenet.weights import key_table

ARCHITECTURES = image_architectures(
    "MobileNetV2",
    "mobilenet_v2",
    MobileNetConfig(),
    MobileNet,
    key_table,
    family="mobilenet",
    heads=SEGMENTER,
)
