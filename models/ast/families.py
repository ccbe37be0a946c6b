"""AST: from its config.json and key table to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from typing import Any

from models.ast.model import AST, ASTConfig
from models.errors import ConfigError
from models.image_heads import Head, image_architectures
from models.settings import read_model
from models.vit.config import ViTConfig
from models.vit.families import body_rows
from models.weights.backbone import Backbone
from models.weights.fields import Fields
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import prefixed

_HEAD = (*norm_rows("classifier.layernorm", "norm"), *dense_rows("classifier.dense", "classifier"))


def _read(fields: Fields) -> Mapping[str, Any]:
    size = fields.positive("num_mel_bins"), fields.positive("max_length")
    patch = fields.positive("patch_size")
    if patch > min(size):
        raise ConfigError(
            f"patch_size={patch} is larger than the spectrogram ({size[1]} frames, {size[0]} mel "
            "bands)"
        )
    backbone = read_model(
        ViTConfig,
        fields,
        image_size=size,
        num_channels=1,
        stride=(fields.positive("frequency_stride"), fields.positive("time_stride")),
        distilled=True,
    )
    return {"backbone": backbone}


ARCHITECTURES = image_architectures(
    "AST",
    "audio-spectrogram-transformer",
    ASTConfig(),
    AST,
    Backbone("audio_spectrogram_transformer.", prefixed("", body_rows(), "backbone.")),
    {"ForAudioClassification": Head(_HEAD)},
    read=_read,
    alone="audio-feature-extraction",
    parts=(ViTConfig(),),
)
