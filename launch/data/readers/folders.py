"""Folders of images, one per class and named after it; folders of sounds, each with its transcript
beside it."""

from collections.abc import Collection, Iterator
from pathlib import Path

from PIL import Image

from launch.data.records import Item, Record, RecordError

IMAGE, LABEL = "image", "label"
AUDIO, TEXT = "audio", "text"
TRANSCRIPT = ".txt"

# What Pillow raises for files that are no images, damaged ones, and ones of absurd sizes.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def read_image(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """The path of the file as `image`, and the name of its folder as `label`.

    The file is opened here, but decoded only when it is needed.
    """
    try:
        with Image.open(path) as image:
            image.getbands()
    except _UNREADABLE as error:
        yield RecordError(f"{path}: expected an image, such as PNG or JPEG: {error}.")
        return
    yield Record({IMAGE: path, LABEL: path.parent.name}, str(path))


def read_transcribed(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """The path of the file as `audio`, and what the text file of the same name says as `text`."""
    transcript = path.with_suffix(TRANSCRIPT)
    try:
        text = transcript.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        yield RecordError(
            f"{path}: expected its transcript in {transcript.name} beside it: {error}. Write it, "
            "or name a JSON Lines file whose records have `audio` and `text`."
        )
        return
    yield Record({AUDIO: path, TEXT: text}, str(path))
