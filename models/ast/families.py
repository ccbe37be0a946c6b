"""AST: from its config.json and key table to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.ast.model import AST, ASTConfig
from models.errors import ConfigError
from models.settings import write_settings
from models.vit.config import ViTConfig
from models.vit.families import read_vit
from models.vit.weights import body_rows
from models.weights.backbone import Backbone
from models.weights.fields import Fields, count_labels, read_dtype
from models.weights.rows import dense_rows, norm_rows
from models.weights.table import KeyTable, prefixed

_BACKBONE = Backbone(
    "audio_spectrogram_transformer.", prefixed("", body_rows(has_pooler=False), "backbone.")
)
_HEAD = (*norm_rows("classifier.layernorm", "norm"), *dense_rows("classifier.dense", "classifier"))
_OWN = {
    "patch_size": 16,
    "frequency_stride": 10,
    "time_stride": 10,
    "max_length": 1024,
    "num_mel_bins": 128,
}
_NOT_OF_SOUND = ("image_size", "num_channels")


def _read(fields: Fields, *, is_classifier: bool) -> ASTConfig:
    size = fields.positive("num_mel_bins"), fields.positive("max_length")
    patch = fields.positive("patch_size")
    if patch > min(size):
        raise ConfigError(
            f"patch_size={patch} is larger than the spectrogram ({size[1]} frames, {size[0]} mel "
            "bands)"
        )
    dtype = read_dtype(fields)
    backbone = read_vit(
        fields,
        image_size=size,
        num_channels=1,
        stride=(fields.positive("frequency_stride"), fields.positive("time_stride")),
        distilled=True,
    )
    labels = count_labels(fields) if is_classifier else None
    return ASTConfig(backbone, labels, dtype=dtype, param_dtype=dtype)


def _keys(table: KeyTable, config: ASTConfig) -> KeyTable:
    return table


ARCHITECTURES = tuple(
    Architecture(
        name="ASTForAudioClassification" if is_classifier else "ASTModel",
        model_type="audio-spectrogram-transformer",
        family="ast",
        task="audio-classification" if is_classifier else "audio-feature-extraction",
        read_config=partial(_read, is_classifier=is_classifier),
        defaults={
            name: value
            for name, value in {**write_settings(ViTConfig()), **_OWN}.items()
            if name not in _NOT_OF_SOUND
        },
        model=AST,
        keys=partial(_keys, _BACKBONE.table(_HEAD if is_classifier else None, _HEAD)),
    )
    for is_classifier in (False, True)
)
