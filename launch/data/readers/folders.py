"""Folders of images or sounds, one per class and named after it; sounds may have their transcripts
beside them."""

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


def read_sound(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """The path of the file as `audio`, the name of its folder as `label`, and what the text file of
    the same name says, if there is one, as `text`."""
    record = {AUDIO: path, LABEL: path.parent.name}
    transcript = path.with_suffix(TRANSCRIPT)
    try:
        record |= {TEXT: transcript.read_text().strip()} if transcript.exists() else {}
    except (OSError, UnicodeDecodeError) as error:
        yield RecordError(
            f"{path}: expected its transcript in {transcript.name} beside it: {error}."
        )
        return
    yield Record(record, str(path))
