"""Reads sound files in any format of libsndfile (WAV, FLAC, OGG, MP3), at the required rate."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from launch.errors import DataError

SHOWN = 80  # characters of a library's message
BLOCK = 1 << 20  # samples of a channel that are read at once


@contextmanager
def _open_sound(file: Path | BinaryIO, sampling_rate: int, name: str) -> Iterator[Any]:
    """The file, for as long as it is read. Raises DataError if it cannot be read."""
    import soundfile  # reading text does not need it

    try:
        with soundfile.SoundFile(str(file) if isinstance(file, Path) else file) as sound:
            yield sound
    except (OSError, RuntimeError, TypeError) as error:
        raise DataError(
            f"{name} cannot be read as sound: {str(error)[:SHOWN]}. Convert it: ffmpeg -i FILE "
            f"-ac 1 -ar {sampling_rate} sound.wav"
        ) from error


def sound_length(file: Path | BinaryIO, sampling_rate: int, name: str | None = None) -> int:
    """How many samples `read_sound` gives, as the file's head says. Raises DataError as it does."""
    name = str(file) if name is None else name
    with _open_sound(file, sampling_rate, name) as sound:
        length = -(-sound.frames * sampling_rate // sound.samplerate)
    if not length:
        raise DataError(f"{name} holds no sound")
    return int(length)


def read_sound(
    file: Path | BinaryIO, sampling_rate: int, name: str | None = None, most: int | None = None
) -> np.ndarray:
    """The samples of a file, FP64 [N] from -1 to 1, averaged over its channels, at `sampling_rate`
    per second.

    `name` is how messages refer to it. Raises DataError if it cannot be read, is empty, or has more
    than `most` samples of each channel.
    """
    from scipy.signal import resample_poly  # reading text does not need it

    name = str(file) if name is None else name
    with _open_sound(file, sampling_rate, name) as sound:
        rate, parts = sound.samplerate, [np.zeros(0)]
        while len(block := sound.read(BLOCK, dtype="float64", always_2d=True)):
            parts.append(block.mean(axis=1))
            if most is not None and sum(map(len, parts)) > most:
                raise DataError(
                    f"{name} has more than {most} samples of sound, {most / rate:.0f} s. Send "
                    "it in parts, or with a lower sampling rate."
                )
        mono = np.concatenate(parts)
    if not len(mono):
        raise DataError(f"{name} holds no sound")
    if rate == sampling_rate:
        return mono
    divisor = gcd(rate, sampling_rate)
    return np.asarray(resample_poly(mono, sampling_rate // divisor, rate // divisor))
