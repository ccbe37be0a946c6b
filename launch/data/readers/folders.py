"""Folders of images: one folder per class, named after it."""

from collections.abc import Collection, Iterator
from pathlib import Path

from PIL import Image

from launch.data.records import Item, Record, RecordError

IMAGE, LABEL = "image", "label"

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
