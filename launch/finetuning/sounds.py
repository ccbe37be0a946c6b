"""Records of sound, and what models take of it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from launch.data.readers.folders import TRANSCRIPT
from launch.data.records import Record, RecordError, first_field, shortened, text_field
from launch.errors import DataError
from launch.sound import read_sound, sound_length
from models.ast import features as ast
from models.ast.model import ASTConfig
from models.pretrained import Described
from models.wav2vec2.config import SpeechConfig
from models.wav2vec2.samples import PREPROCESSOR_FILE, Samples, normalised, read_samples
from models.whisper import features as whisper

AUDIO = ("audio", "file_name", "path")
TRANSCRIPTS = ("text", "sentence", "transcription", "transcript")

Row = Mapping[str, Any]


def sound_of(record: Record) -> Any:
    """The sound as it is stored. Raises RecordError if it is not what it should be."""
    sound = first_field(record, AUDIO)
    if isinstance(sound, Mapping) and sound.get("bytes") is None and "array" not in sound:
        sound = sound.get("path")  # as Hugging Face `datasets` stores sounds in tables
    if isinstance(sound, str):
        sound = record.file(sound)
    stored = isinstance(sound, Mapping) and ("array" in sound or sound.get("bytes") is not None)
    if not isinstance(sound, Path) and not stored:
        raise RecordError(
            f"{record.place}: expected sound as the path of a file, as its `bytes`, or as an "
            f"`array` with its `sampling_rate`, not {shortened(sound)}."
        )
    return sound


def transcript_of(record: Record) -> str:
    """What is said. Raises RecordError if the record does not tell."""
    sound = record.fields.get(AUDIO[0])
    if isinstance(sound, Path) and not record.fields.keys() & set(TRANSCRIPTS):
        raise RecordError(
            f"{record.place}: expected its transcript in {sound.with_suffix(TRANSCRIPT).name} "
            "beside it. Write it, or name a JSON Lines file whose records have `audio` and `text`."
        )
    return text_field(record, TRANSCRIPTS)


def samples_of_sound(sound: Any, sampling_rate: int) -> np.ndarray:
    """The samples [N], FP64, at this rate. Raises DataError if the sound cannot be read."""
    if isinstance(sound, Path):
        return read_sound(sound, sampling_rate)
    if sound.get("bytes") is not None:
        return read_sound(io.BytesIO(sound["bytes"]), sampling_rate, str(sound.get("path")))
    rate = sound.get("sampling_rate")
    if rate != sampling_rate or sound.get("array") is None:
        raise DataError(
            f"a sound has {rate} samples per second, but the model needs {sampling_rate}. Resample "
            "the records."
        )
    return np.asarray(sound["array"], np.float64)


def length_of_sound(record: Record, sampling_rate: int) -> int:
    """The samples of the record's sound at this rate. Raises RecordError if it cannot be read."""
    sound = sound_of(record)
    try:
        if isinstance(sound, Path):
            return sound_length(sound, sampling_rate)
        if sound.get("bytes") is not None:
            return sound_length(io.BytesIO(sound["bytes"]), sampling_rate, str(sound.get("path")))
        return len(samples_of_sound(sound, sampling_rate))
    except DataError as error:
        raise RecordError(f"{record.place}: {error}") from error


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

    def row(self, samples: np.ndarray) -> Row:
        """The model's inputs, of samples [N]."""
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

    def row(self, samples: np.ndarray) -> Row:
        sound = normalised(samples, self.samples)
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

    def row(self, samples: np.ndarray) -> Row:
        return {"sound": ast.log_mel(samples, self.settings)}


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

    def row(self, samples: np.ndarray) -> Row:
        return {"features": whisper.log_mel(samples, self.settings)}


_INPUTS: Mapping[str, Callable[[Any, Path | None], SoundInput]] = {
    "wav2vec2": Waveform.of,
    "ast": KaldiSpectrogram.of,
    "whisper": WhisperSpectrogram.of,
}
"""Family -> what its models take, by the config and the directory with the checkpoint's files."""


def sound_input(base: Described, files: Path) -> SoundInput | None:
    """What the model takes of a sound, as the files beside it say; None if it takes none.

    Raises ConfigError if they cannot be used.
    """
    of = _INPUTS.get(base.architecture.family)
    if of is None:
        return None
    return of(base.config, files if (files / PREPROCESSOR_FILE).is_file() else None)


def with_room_for(
    sound: SoundInput, records: Sequence[Sequence[Record]], seconds: float, *, skips: bool
) -> SoundInput:
    """The same input with rows for the longest sound of the records that lasts no longer than
    `seconds`. Raises RecordError for a sound that cannot be read, unless `skips`."""
    if not isinstance(sound, Waveform):
        return sound
    limit, longest = int(seconds * sound.sampling_rate), sound.shortest
    for record in (record for source in records for record in source):
        try:
            length = length_of_sound(record, sound.sampling_rate)
        except RecordError:
            if not skips:
                raise
        else:
            longest = max(longest, length if length <= limit else 0)
    return replace(sound, longest=longest)


def sound_row(row: Row, sound: SoundInput) -> Row:
    """What the model takes, in place of the sound as it is stored. Raises DataError if it cannot be
    read."""
    others = {name: value for name, value in row.items() if name != "sound"}
    return {**others, **sound.row(samples_of_sound(row["sound"], sound.sampling_rate))}
