"""The samples that models of speech take, by a preprocessor_config.json."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.weights.fields import read_processor

_FLOOR = 1e-7  # added to the variance


@dataclass(frozen=True)
class Samples:
    """How sound becomes what the model takes."""

    sampling_rate: int = 16_000  # samples per second
    normalized: bool = True  # to mean 0 and variance 1


def read_samples(directory: Path) -> Samples:
    """The settings of a checkpoint's preprocessor_config.json or processor_config.json.

    Raises ConfigError if it cannot be read or asks for something that is not supported.
    """
    fields = read_processor(directory, "feature_extractor")
    fields.refuse(
        "feature_extractor_type",
        "Wav2Vec2FeatureExtractor",
        why="only Wav2Vec2FeatureExtractor is supported",
    )
    fields.refuse("feature_size", 1, why="only mono sound is supported")
    return Samples(
        sampling_rate=fields.positive("sampling_rate", 16_000),
        normalized=fields.flag("do_normalize", True),
    )


def normalised(sound: np.ndarray, settings: Samples) -> np.ndarray:
    """What the model takes, FP32 [N], of sound [N] at the settings' rate."""
    if settings.normalized:
        sound = (sound - sound.mean()) / np.sqrt(sound.var() + _FLOOR)
    return sound.astype(np.float32)
