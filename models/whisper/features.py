"""The log-mel spectrogram that Whisper hears, by a preprocessor_config.json. NumPy, FP64 inside.

Axis names: N samples, F frames, M mel bands, K = n_fft / 2 + 1 frequencies.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.errors import ConfigError, InputError
from models.weights.fields import Fields, read_fields, read_processor

_HIGHEST = 8000.0  # Hz: where the mel bands end
_FLOOR = 1e-10  # of the energy in a band
_RANGE = 8.0  # decades below the loudest band that are kept
# Slaney's mel scale ("Auditory Toolbox", 1998): linear up to 1 kHz, logarithmic above.
_LINEAR_HZ_PER_MEL = 200 / 3
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _LINEAR_HZ_PER_MEL
_MELS_PER_LOG = 27 / np.log(6.4)


@dataclass(frozen=True)
class Spectrogram:
    """How sound becomes features. Raises ConfigError if the sizes do not fit together."""

    num_mels: int = 80
    sampling_rate: int = 16_000  # samples per second
    n_fft: int = 400  # samples of a frame
    hop: int = 160  # samples from one frame to the next
    seconds: int = 30  # of every input: shorter sound is padded with silence, longer is cut

    def __post_init__(self) -> None:
        if self.n_fft % 2 or self.hop > self.n_fft:
            raise ConfigError(
                f"n_fft={self.n_fft} must be even, and hop={self.hop} must not exceed it"
            )

    @property
    def num_samples(self) -> int:
        return self.seconds * self.sampling_rate


def read_spectrogram(path: Path) -> Spectrogram:
    """The settings of a checkpoint's preprocessor_config.json, given as the file or its directory.

    Raises ConfigError if it cannot be read or asks for something that is not supported.
    """
    fields = read_processor(path, "feature_extractor") if path.is_dir() else read_fields(path)
    _refuse_others(fields)
    return Spectrogram(
        num_mels=fields.positive("feature_size", 80),
        sampling_rate=fields.positive("sampling_rate", 16_000),
        n_fft=fields.positive("n_fft", 400),
        hop=fields.positive("hop_length", 160),
        seconds=fields.positive("chunk_length", 30),
    )


def _refuse_others(fields: Fields) -> None:
    fields.refuse(
        "feature_extractor_type",
        "WhisperFeatureExtractor",
        why="only WhisperFeatureExtractor is supported",
    )
    fields.refuse("dither", 0, 0.0, why="dithering is not supported")
    fields.refuse("do_normalize", False, why="normalising the sound is not supported")
    fields.refuse("padding_value", 0, 0.0, why="only padding with silence is supported")


def log_mel(sound: np.ndarray, settings: Spectrogram) -> np.ndarray:
    """Features FP32 [F, M] of sound [N], samples from -1 to 1 at the settings' rate.

    Raises InputError if the sound is not one channel of real numbers.
    """
    sound = np.asarray(sound)
    if sound.ndim != 1 or not np.issubdtype(sound.dtype, np.floating):
        raise InputError(
            f"the sound has the dtype {sound.dtype} and the shape {list(sound.shape)}, but it "
            "must be one channel of numbers from -1 to 1"
        )
    sound = sound[: settings.num_samples].astype(np.float64)
    sound = np.pad(sound, (0, settings.num_samples - len(sound)))
    energy = _power(sound, settings) @ mel_filters(settings)  # [F, M]
    loudness = np.log10(np.maximum(energy, _FLOOR))
    loudness = np.maximum(loudness, loudness.max() - _RANGE)
    return ((loudness + 4) / 4).astype(np.float32)


def _power(sound: np.ndarray, settings: Spectrogram) -> np.ndarray:
    """|short-time Fourier transform|² [F, K]: frames are centred, the ends mirrored, and the last
    frame is dropped."""
    padded = np.pad(sound, settings.n_fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, settings.n_fft)
    frames = frames[:: settings.hop][: len(sound) // settings.hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(settings.n_fft) / settings.n_fft)  # Hann
    return np.abs(np.fft.rfft(frames * window)) ** 2


def mel_filters(settings: Spectrogram) -> np.ndarray:
    """Triangles over the frequencies, each of area 1: [K, M]."""
    frequencies = np.linspace(0, settings.sampling_rate / 2, settings.n_fft // 2 + 1)
    corners = _hertz(np.linspace(0, _mel(_HIGHEST), settings.num_mels + 2))
    low, centre, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - low) / (centre - low)
    falling = (high - frequencies[:, None]) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return hertz / _LINEAR_HZ_PER_MEL
    return float(_KNEE_MEL + np.log(hertz / _KNEE_HZ) * _MELS_PER_LOG)


def _hertz(mels: np.ndarray) -> np.ndarray:
    logarithmic = _KNEE_HZ * np.exp((mels - _KNEE_MEL) / _MELS_PER_LOG)
    return np.where(mels < _KNEE_MEL, mels * _LINEAR_HZ_PER_MEL, logarithmic)
