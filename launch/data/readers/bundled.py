"""Data that comes with Python or a library, so that nothing is downloaded."""

import pydoc_data.topics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from launch.data.extras import library
from launch.data.readers.folders import IMAGE, LABEL
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


PYTHON_REFERENCE = "python_reference"

BUNDLED: Mapping[str, Bundled] = {
    PYTHON_REFERENCE: Bundled("text", _python_reference),
    "digits": Bundled("images", _digits),
}
