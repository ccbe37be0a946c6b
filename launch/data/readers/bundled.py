"""Data that comes with Python or a library, so that nothing is downloaded."""

import pydoc_data.topics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from launch.data.extras import library
from launch.data.readers.folders import AUDIO, IMAGE, LABEL
from launch.data.readers.plain import FIELD
from launch.data.records import Item, Record


class Bundled(NamedTuple):
    """Records under a name."""

    format: str  # a name of launch.data.formats.FORMATS
    read: Callable[[], Iterator[Item]]


def _python_reference() -> Iterator[Item]:
    """The Python language reference in the standard library, topic by topic in alphabetical order.

    Topics quote each other: a paragraph that occurs again is left out, so that the held-out end
    is text not seen in training.
    """
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    yield Record({FIELD: "\n\n".join(dict.fromkeys(text.split("\n\n")))}, PYTHON_REFERENCE)


def _digits() -> Iterator[Item]:
    """1,797 handwritten digits, uint8 [8, 8, 3] (Alpaydin and Kaynak, 1998)."""
    digits = library("sklearn.datasets", "scikit-learn", "--data=digits").load_digits()
    grey = (digits.images * (255 / 16)).round().astype("uint8")
    for number, (image, label) in enumerate(zip(grey, digits.target, strict=True), 1):
        yield Record(
            {IMAGE: image[:, :, None].repeat(3, axis=2), LABEL: str(label)}, f"digits, {number}"
        )


def _vowels() -> Iterator[Item]:
    """1,000 spoken vowels of 0.2 to 0.4 s, synthesised: a buzz through the resonances of the vocal
    tract of a man, a woman or a child, who speak at different pitches, in noise."""
    draw = np.random.default_rng(0)
    for number, vowel in enumerate(draw.permutation([*_FORMANTS] * (_SPOKEN // len(_FORMANTS)))):
        sound = _synthesise(np.array(_FORMANTS[vowel]), draw)
        yield Record(
            {AUDIO: {"array": sound, "sampling_rate": _RATE}, LABEL: str(vowel)},
            f"vowels, {number + 1}",
        )


def _synthesise(formants: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Samples FP32 [N] from -1 to 1."""
    longer = draw.choice([1.0, 1.16, 1.35]) * draw.uniform(0.95, 1.05)  # of a shorter vocal tract
    pitch = 120 * longer**2 * draw.uniform(0.85, 1.15)  # Hz
    times = np.arange(int(draw.uniform(0.2, 0.4) * _RATE)) / _RATE
    harmonics = pitch * np.arange(1, int(_RATE / 2 / pitch))
    bandwidths = 50 + 0.05 * formants
    distances = (harmonics[:, None] ** 2 - (longer * formants) ** 2) / (harmonics[:, None])
    strengths = np.prod(1 / np.sqrt(1 + (distances / bandwidths) ** 2), axis=1) / harmonics
    phases = draw.uniform(0, 2 * np.pi, len(harmonics))
    sound = strengths @ np.sin(2 * np.pi * harmonics[:, None] * times + phases[:, None])
    sound = sound / np.abs(sound).max() * draw.uniform(0.3, 0.9)
    return np.asarray(sound + draw.normal(0, 0.01, len(sound)), np.float32)


_RATE = 16_000  # samples per second
_SPOKEN = 1000
_FORMANTS = {
    "heed": (270, 2290, 3010),
    "hid": (390, 1990, 2550),
    "head": (530, 1840, 2480),
    "had": (660, 1720, 2410),
    "hod": (730, 1090, 2440),
    "hawed": (570, 840, 2410),
    "hood": (440, 1020, 2240),
    "who'd": (300, 870, 2240),
    "hud": (640, 1190, 2390),
    "heard": (490, 1350, 1690),
}
"""The word with a vowel -> the vowel's resonances in men, Hz. Peterson and Barney, "Control Methods
Used in a Study of the Vowels", 1952."""

PYTHON_REFERENCE = "python_reference"

BUNDLED: Mapping[str, Bundled] = {
    PYTHON_REFERENCE: Bundled("text", _python_reference),
    "digits": Bundled("images", _digits),
    "vowels": Bundled("sounds", _vowels),
}
