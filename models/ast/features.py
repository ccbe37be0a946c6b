"""The spectrogram that AST hears, by a preprocessor_config.json: that of Kaldi (Povey et al.,
2011). NumPy, FP64 inside.

Axis names: N samples, F frames, M mel bands, K frequencies.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.errors import ConfigError, InputError
from models.weights.fields import read_processor

_FRAME, _HOP = 0.025, 0.010  # seconds
_PREEMPHASIS = 0.97
_LOWEST = 20.0  # Hz: where the mel bands begin
_FLOOR = float(np.finfo(np.float32).eps)  # of the energy in a band


@dataclass(frozen=True)
class Spectrogram:
    """How sound becomes features; the means are AudioSet's. Raises ConfigError if a frame is too
    short for its frequencies."""

    num_mels: int = 128
    sampling_rate: int = 16_000  # samples per second
    num_frames: int = 1024  # shorter sounds are padded with zeros, longer ones are cut
    mean: float = -4.2677393
    std: float = 4.5689974
    normalized: bool = True

    def __post_init__(self) -> None:
        if self.hop < 1:
            raise ConfigError(
                f"sampling_rate={self.sampling_rate} is too low: a frame would have no samples"
            )

    @property
    def frame(self) -> int:
        """Samples of a frame."""
        return int(_FRAME * self.sampling_rate)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return int(_HOP * self.sampling_rate)

    @property
    def n_fft(self) -> int:
        return 1 << (self.frame - 1).bit_length()


def read_spectrogram(directory: Path) -> Spectrogram:
    """The settings of a checkpoint's preprocessor_config.json or processor_config.json.

    Raises ConfigError if it cannot be read or asks for something that is not supported.
    """
    fields = read_processor(directory, "feature_extractor")
    fields.refuse(
        "feature_extractor_type",
        "ASTFeatureExtractor",
        why="only ASTFeatureExtractor is supported here",
    )
    fields.refuse("padding_value", 0, 0.0, why="only padding with zeros is supported")
    return Spectrogram(
        num_mels=fields.positive("num_mel_bins", 128),
        sampling_rate=fields.positive("sampling_rate", 16_000),
        num_frames=fields.positive("max_length", 1024),
        mean=fields.number("mean", Spectrogram.mean),
        std=fields.positive_number("std", Spectrogram.std),
        normalized=fields.flag("do_normalize", True),
    )


def log_mel(sound: np.ndarray, settings: Spectrogram) -> np.ndarray:
    """Features FP32 [F, M] of sound [N], samples from -1 to 1 at the settings' rate.

    Raises InputError if the sound is shorter than a frame.
    """
    if sound.ndim != 1 or len(sound) < settings.frame:
        raise InputError(
            f"the sound has the shape {list(sound.shape)}, but it must be one channel of at least "
            f"{settings.frame} samples ({_FRAME} seconds)"
        )
    frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), settings.frame)
    frames = frames[:: settings.hop][: settings.num_frames]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    frames = (frames - _PREEMPHASIS * before) * np.hanning(settings.frame)
    power = np.abs(np.fft.rfft(frames, settings.n_fft)) ** 2
    loudness = np.log(np.maximum(power @ mel_filters(settings), _FLOOR))
    loudness = np.pad(loudness, ((0, settings.num_frames - len(loudness)), (0, 0)))
    if settings.normalized:
        loudness = (loudness - settings.mean) / (2 * settings.std)
    return loudness.astype(np.float32)


def mel_filters(settings: Spectrogram) -> np.ndarray:
    """Triangles over the mel scale of height 1: [K, M]."""
    nyquist = settings.sampling_rate // 2
    frequencies = _mel(settings.sampling_rate / settings.n_fft * np.arange(settings.n_fft // 2 + 1))
    corners = np.linspace(_mel(_LOWEST), _mel(nyquist), settings.num_mels + 2)
    low, centre, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - low) / (centre - low)
    falling = (high - frequencies[:, None]) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling))


def _mel(hertz: float | np.ndarray) -> np.ndarray:
    return np.asarray(1127 * np.log(1 + np.asarray(hertz) / 700))
