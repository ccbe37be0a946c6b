"""Records of speech: the sound, what is said, and how long both are."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from launch.data.records import Record, RecordError, first_field, shortened, text_field
from launch.errors import DataError
from launch.sound import read_sound, sound_length
from models.errors import InputError
from models.pretrained import Described
from models.wav2vec2.config import SpeechConfig
from models.wav2vec2.letters import Letters, read_letters
from models.wav2vec2.samples import PREPROCESSOR_FILE, Samples, read_samples

AUDIO = ("audio", "file_name", "path")
TRANSCRIPTS = ("text", "sentence", "transcription", "transcript")


def transcribed(record: Record) -> tuple[Any, str]:
    """The sound as it is stored, and what is said. Raises RecordError if one of them is not what it
    should be."""
    sound, text = first_field(record, AUDIO), text_field(record, TRANSCRIPTS)
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
    return sound, text


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
    sound, _ = transcribed(record)
    try:
        if isinstance(sound, Path):
            return sound_length(sound, sampling_rate)
        if sound.get("bytes") is not None:
            return sound_length(io.BytesIO(sound["bytes"]), sampling_rate, str(sound.get("path")))
        return len(samples_of_sound(sound, sampling_rate))
    except DataError as error:
        raise RecordError(f"{record.place}: {error}") from error


@dataclass(frozen=True)
class Hearing:
    """What a model of letters hears and writes, and how much of it a row holds."""

    config: SpeechConfig
    letters: Letters
    samples: Samples
    most_samples: int = 0
    most_letters: int = 0

    @property
    def frames(self) -> int:
        """The frames of a row."""
        return self.config.frames(self.most_samples)

    def length(self, record: Record) -> int:
        """The samples of the record's sound. Raises RecordError if it cannot be read."""
        return length_of_sound(record, self.samples.sampling_rate)

    def written(self, record: Record) -> list[int]:
        """The letters of the record's transcript. Raises RecordError if some have no token."""
        try:
            return self.letters.encode(transcribed(record)[1])
        except InputError as error:
            raise RecordError(f"{record.place}: {error}.") from error


def hearing_of(base: Described, files: Path) -> Hearing:
    """What the model hears and writes, as the files beside it say.

    Raises ConfigError if they cannot be used, DataError if the model has too few letters.
    """
    letters = read_letters(files)
    size = base.config.vocab_size
    most = max(letters.texts, default=0)
    if most >= size:
        raise DataError(
            f"{files} has tokens up to {most}, but the model's vocabulary has {size}. Put the "
            "files that belong to the model into its directory."
        )
    there = (files / PREPROCESSOR_FILE).is_file()
    return Hearing(base.config, letters, read_samples(files) if there else Samples())


def sized(
    hearing: Hearing, records: Sequence[Sequence[Record]], seconds: float, *, skips: bool
) -> Hearing:
    """The same with rows as long as the longest sound and transcript, but for sounds of more than
    so many seconds. Raises RecordError for a record that cannot be used, unless `skips`."""
    limit = int(seconds * hearing.samples.sampling_rate)
    samples, letters = hearing.config.shortest, 1
    for record in (record for source in records for record in source):
        try:
            length = hearing.length(record)
            if length <= limit:
                samples = max(samples, length)
                letters = max(letters, len(hearing.written(record)))
        except RecordError:
            if not skips:
                raise
    return replace(hearing, most_samples=samples, most_letters=letters)
