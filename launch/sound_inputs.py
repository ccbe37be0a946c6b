"""How models are given a sound: as a waveform, or as a spectrogram."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models.ast import features as ast
from models.ast.model import ASTConfig
from models.pretrained import Described
from models.wav2vec2.config import SpeechConfig
from models.wav2vec2.samples import Samples, normalised, read_samples
from models.weights.fields import has_processor
from models.whisper import features as whisper

Row = Mapping[str, Any]


class SoundInput(Protocol):
    """How a model is given a sound."""

    @property
    def sampling_rate(self) -> int: ...

    @property
    def shortest(self) -> int:
        """Samples of the shortest sound that it takes."""
        ...

    @property
    def longest(self) -> int | None:
        """Samples that a row holds; None: what is longer is cut."""
        ...

    def features(self, samples: np.ndarray) -> np.ndarray:
        """What the model computes with, FP32, of samples [N]."""
        ...

    def row(self, samples: np.ndarray) -> Row:
        """The model's inputs by their names in a row of training data, of samples [N]."""
        ...


@dataclass(frozen=True)
class Waveform:
    """The `sound` [N] itself, as long in every row, and how many of its `frames` [] are real."""

    config: SpeechConfig
    samples: Samples
    longest: int = 0

    @classmethod
    def of(cls, config: SpeechConfig, files: Path | None) -> "Waveform":
        return cls(config, Samples() if files is None else read_samples(files))

    @property
    def sampling_rate(self) -> int:
        return self.samples.sampling_rate

    @property
    def shortest(self) -> int:
        return self.config.shortest

    @property
    def frames(self) -> int:
        """The frames of a row."""
        return self.config.frames(self.longest)

    def features(self, samples: np.ndarray) -> np.ndarray:
        return normalised(samples, self.samples)

    def row(self, samples: np.ndarray) -> Row:
        sound = self.features(samples)
        return {
            "sound": np.pad(sound, (0, self.longest - len(sound))),
            "frames": np.int32(self.config.frames(len(sound))),
        }


@dataclass(frozen=True)
class KaldiSpectrogram:
    """A spectrogram [F, M] as `sound`: what AST takes."""

    settings: ast.Spectrogram
    longest: None = None

    @classmethod
    def of(cls, config: ASTConfig, files: Path | None) -> "KaldiSpectrogram":
        frames, mels = config.spectrogram
        plain = ast.Spectrogram(num_frames=frames, num_mels=mels)
        return cls(plain if files is None else ast.read_spectrogram(files))

    @property
    def sampling_rate(self) -> int:
        return self.settings.sampling_rate

    @property
    def shortest(self) -> int:
        return self.settings.frame

    def features(self, samples: np.ndarray) -> np.ndarray:
        return ast.log_mel(samples, self.settings)

    def row(self, samples: np.ndarray) -> Row:
        return {"sound": self.features(samples)}


@dataclass(frozen=True)
class WhisperSpectrogram:
    """A spectrogram [F, M] as `features`: what Whisper takes."""

    settings: whisper.Spectrogram
    shortest: int = 1
    longest: None = None

    @classmethod
    def of(cls, config: Any, files: Path | None) -> "WhisperSpectrogram":
        return cls(whisper.Spectrogram() if files is None else whisper.read_spectrogram(files))

    @property
    def sampling_rate(self) -> int:
        return self.settings.sampling_rate

    def features(self, samples: np.ndarray) -> np.ndarray:
        return whisper.log_mel(samples, self.settings)

    def row(self, samples: np.ndarray) -> Row:
        return {"features": self.features(samples)}


INPUTS: Mapping[str, Callable[[Any, Path | None], SoundInput]] = {
    "wav2vec2": Waveform.of,
    "ast": KaldiSpectrogram.of,
    "whisper": WhisperSpectrogram.of,
}
"""Family -> how its models are given a sound, by the config and the directory with the checkpoint's
preprocessor_config.json; None: by the config alone."""


def sound_input(base: Described, files: Path) -> SoundInput | None:
    """What the model takes of a sound, as the files beside it say; None if it takes none.

    Raises ConfigError if they cannot be used.
    """
    of = INPUTS.get(base.architecture.family)
    if of is None:
        return None
    return of(base.config, files if has_processor(files) else None)
