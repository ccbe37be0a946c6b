"""Records of speech as rows for models that write letters."""

from itertools import pairwise

import numpy as np

from launch.data.records import Record
from launch.finetuning.sounds import length_of_sound, sound_of
from launch.finetuning.text_examples import Reading, Row
from launch.sound_inputs import Waveform


def spelled_sound(record: Record, reading: Reading) -> Row | None:
    """The sound as it is stored; `letters` [L], of which `count` [] are real.

    Sounds that are longer than a row, or have fewer frames than their letters need, are left out.
    """
    sound, spelling = reading.sound, reading.spelling
    assert isinstance(sound, Waveform)
    assert spelling is not None
    length, letters = length_of_sound(record, sound.sampling_rate), spelling.of_record(record)
    if not letters:
        reading.counts.empty += 1
        return None
    doubled = sum(letter == following for letter, following in pairwise(letters))
    fits = length <= sound.longest and len(letters) <= spelling.most
    if not fits or len(letters) + doubled > sound.config.outputs(sound.config.frames(length)):
        reading.counts.dropped += 1
        return None
    missing = spelling.most - len(letters)
    return {
        "sound": sound_of(record),
        "letters": np.pad(np.array(letters, np.int32), (0, missing)),
        "count": np.int32(len(letters)),
    }
