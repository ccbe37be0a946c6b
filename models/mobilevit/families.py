"""MobileViT: from its config.json to the model. Defaults are those of transformers."""

from models.image_heads import SEGMENTER, image_architectures
from models.mobilevit.config import MobileViTConfig
from models.mobilevit.model import MobileViT
from models.mobilevit.weights import key_table

ARCHITECTURES = image_architectures(
    "MobileViT", "mobilevit", MobileViTConfig(), MobileViT, key_table, heads=SEGMENTER
)
