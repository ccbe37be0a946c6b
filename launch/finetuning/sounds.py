"""Records of sound, and rows of what models take of it."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from launch.data.readers.folders import TRANSCRIPT
from launch.data.records import Record, RecordError, first_field, shortened, text_field
from launch.errors import DataError
from launch.sound import read_sound, sound_length
from launch.sound_inputs import Row, SoundInput, Waveform

AUDIO = ("audio", "file_name", "path")
TRANSCRIPTS = ("text", "sentence", "transcription", "transcript")


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


def with_room_for(
    sound: SoundInput, records: Sequence[Sequence[Record]], seconds: float, *, skips: bool
) -> SoundInput:
    """A sound input whose rows hold the longest sound of the records that lasts no longer than
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
