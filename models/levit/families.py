"""LeViT: from its config.json to the model. Defaults are those of transformers."""

from models.image_heads import CLASSIFIER, image_architectures
from models.levit.config import LevitConfig
from models.levit.model import Levit
from models.levit.weights import key_table

ARCHITECTURES = image_architectures(
    "Levit",
    "levit",
    LevitConfig(),
    Levit,
    key_table,
    heads={**CLASSIFIER, "ForImageClassificationWithTeacher": {"distilled": True}},
)
