"""LeViT: from its config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.levit.config import LevitConfig
from models.levit.model import Levit
from models.levit.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels


def _read(fields: Fields, *, heads: int) -> LevitConfig:
    labels = count_labels(fields) if heads else None
    return read_model(LevitConfig, fields, num_labels=labels, distilled=heads > 1)


ARCHITECTURES = tuple(
    Architecture(
        name=f"Levit{name}",
        model_type="levit",
        family="levit",
        task="image-classification" if heads else "image-feature-extraction",
        read_config=partial(_read, heads=heads),
        defaults=write_settings(LevitConfig()),
        model=Levit,
        keys=key_table,
    )
    for heads, name in enumerate(
        ("Model", "ForImageClassification", "ForImageClassificationWithTeacher")
    )
)
