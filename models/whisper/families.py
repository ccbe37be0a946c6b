"""Whisper: from its config.json to the model. Defaults are those of transformers."""

from models.architecture import Architecture
from models.settings import read_model, write_settings
from models.weights.fields import Fields
from models.whisper.config import WhisperConfig
from models.whisper.model import Whisper
from models.whisper.weights import key_table


def _whisper(fields: Fields) -> WhisperConfig:
    fields.refuse(
        "tie_word_embeddings", True, why="the output layer must share the embedding table"
    )
    return read_model(WhisperConfig, fields)


ARCHITECTURES = (
    Architecture(
        name="WhisperForConditionalGeneration",
        model_type="whisper",
        family="whisper",
        task="automatic-speech-recognition",
        read_config=_whisper,
        defaults=write_settings(WhisperConfig()),
        model=Whisper,
        keys=key_table,
    ),
)
