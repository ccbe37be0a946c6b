"""Records of speech as rows for models that hear letters."""

from itertools import pairwise
from typing import Any

import numpy as np

from launch.data.records import Record
from launch.finetuning.sounds import Hearing, samples_of_sound, transcribed
from launch.finetuning.text_examples import Reading, Row
from models.wav2vec2.samples import heard


def spelled_sound(record: Record, reading: Reading) -> Row | None:
    """The sound as it is stored; `letters` [L], of which `count` [] are real; `frames` [], those of
    the sound.

    Sounds that are longer than a row, or have fewer frames than their letters need, are left out.
    """
    hearing = reading.hearing
    assert hearing is not None
    length, letters = hearing.length(record), hearing.written(record)
    if not letters:
        reading.counts.empty += 1
        return None
    frames = hearing.config.frames(length)
    doubled = sum(letter == following for letter, following in pairwise(letters))
    fits = length <= hearing.most_samples and len(letters) <= hearing.most_letters
    if not fits or len(letters) + doubled > frames:
        reading.counts.dropped += 1
        return None
    missing = hearing.most_letters - len(letters)
    return {
        "sound": transcribed(record)[0],
        "letters": np.pad(np.array(letters, np.int32), (0, missing)),
        "count": np.int32(len(letters)),
        "frames": np.int32(frames),
    }


def heard_row(row: Row, hearing: Hearing) -> Row:
    """`sound` [N], FP32, in place of how it is stored. Raises DataError if it cannot be read."""
    samples = samples_of_sound(row["sound"], hearing.samples.sampling_rate)
    sound = heard(samples, hearing.samples)
    others: dict[str, Any] = {name: value for name, value in row.items() if name != "sound"}
    return {"sound": np.pad(sound, (0, hearing.most_samples - len(sound))), **others}
