"""Whisper: from its config.json to the model. Defaults are those of transformers."""

from models.architecture import Architecture
from models.weights.tied import refuse_own_head
from models.whisper.config import WhisperConfig
from models.whisper.model import Whisper
from models.whisper.weights import KEYS

ARCHITECTURES = (
    Architecture.of(
        "WhisperForConditionalGeneration",
        WhisperConfig(),
        Whisper,
        KEYS,
        task="automatic-speech-recognition",
        read=refuse_own_head,
    ),
)
