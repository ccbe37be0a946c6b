"""Folders of images: one folder for each class, named like it."""

from collections.abc import Collection, Iterator
from pathlib import Path

from launch.data.records import Item, Record

IMAGE, LABEL = "image", "label"


def read_image(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """The path of the file as `image`, and the name of its folder as `label`."""
    yield Record({IMAGE: path, LABEL: path.parent.name}, str(path))
