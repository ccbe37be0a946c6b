"""Images to train on: from --data to pixels and labels."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np
from PIL import Image

from launch.data.batches import Data
from launch.data.config import DataConfig
from launch.data.pieces import Row
from launch.data.records import Counts, Record, RecordError, field_of, read_values
from launch.data.sources import open_sources
from launch.errors import DataError
from models.images import Preprocessing, pixels_of

Content = Path | bytes | np.ndarray  # a file, what stands in one, or uint8 [H, W, 3]


@dataclass(frozen=True)
class LabelledImages:
    """Images and the names of their classes, in the order of the labels' numbers."""

    data: Data
    classes: tuple[str, ...]


class Images:
    """`pixels` FP32 [H, W, 3], `labels` int32 [] and `weights` FP32 [] of every image.

    A grain random-access source. Raises DataError for an image that turns out to be damaged.
    """

    def __init__(
        self,
        contents: Sequence[tuple[str, Content]],
        labels: np.ndarray,
        preprocessing: Preprocessing,
    ) -> None:
        self._contents, self._labels, self._preprocessing = contents, labels, preprocessing

    def __len__(self) -> int:
        return len(self._contents)

    def __getitem__(self, number: int) -> Row:
        place, content = self._contents[number]
        try:
            with _open(content) as image:
                pixels = pixels_of(image, self._preprocessing)
        except _UNREADABLE as error:
            raise DataError(f"{place}: the image is damaged: {error}.") from error
        return {
            "pixels": pixels,
            "labels": self._labels[number],
            "weights": np.ones((), np.float32),
        }


def open_images(config: DataConfig, preprocessing: Preprocessing, *, seed: int) -> LabelledImages:
    """Images with labels: of a folder for each class, of tables with images, or bundled.

    Every image is opened here, and decoded when it is needed. Raises DataError for what cannot be
    used, and for mixtures.
    """
    counts = Counts()
    contents, names = _read(config, config.data, counts)
    classes = tuple(sorted(set(names), key=_order))
    if len(classes) < 2:
        raise DataError(
            f"--data={config.data} has {len(classes)} classes of images ({counts}). Give a folder "
            "with a folder of images for each class, or name the field with --label_field."
        )
    labels = _numbers(names, classes, config.data)
    fingerprint = _fingerprint(contents, labels)
    held_out = _held_out(len(contents), config.held_out_fraction)
    if config.held_out_data is None:
        others = [contents[i] for i in held_out], labels[held_out]
        kept = np.delete(np.arange(len(contents)), held_out)
        contents, labels = [contents[i] for i in kept], labels[kept]
    else:
        more, more_names = _read(config, config.held_out_data, Counts())
        others = more, _numbers(more_names, classes, config.held_out_data)
    images = grain.MapDataset.source(Images(contents, labels, preprocessing))
    data = Data(
        rows=images.seed(seed).shuffle().repeat(),
        held_out=grain.MapDataset.source(Images(*others, preprocessing)) if others[0] else [],
        size=len(contents),
        counts=counts,
        identity={"images": fingerprint, "classes": list(classes)},
    )
    return LabelledImages(data, classes)


def _read(
    config: DataConfig, text: str | None, counts: Counts
) -> tuple[list[tuple[str, Content]], list[str]]:
    """(place, content) and name of the class of every image."""
    fields = [config.image_field, config.label_field]
    contents: list[tuple[str, Content]] = []
    names: list[str] = []
    for source in open_sources(text, config.data_format):
        if source.weight is not None:
            raise DataError(f"--data={text} gives weights, which sources of images cannot have.")
        read = partial(_image, image=fields[0], label=fields[1])
        items = source.items(fields)
        skip = config.bad_records == "skip"
        for place, (content, name) in read_values(items, read, skip=skip, counts=counts):
            contents.append((place, content))
            names.append(name)
    return contents, names


def _image(record: Record, image: str, label: str) -> tuple[Content, str]:
    """Content and class of a record. Raises RecordError if it is none."""
    name = field_of(record, label)
    if not isinstance(name, str | int):
        kind = type(name).__name__
        raise RecordError(f"{record.place}: expected a class in the field {label!r}, not a {kind}.")
    content = field_of(record, image)
    if isinstance(content, dict):  # as Hugging Face's datasets keep images
        content = content.get("bytes")
    if not isinstance(content, Path | bytes | np.ndarray):
        kind = type(content).__name__
        raise RecordError(
            f"{record.place}: expected an image in the field {image!r}, not a {kind}."
        )
    try:
        with _open(content) as opened:
            opened.getbands()
    except _UNREADABLE as error:
        raise RecordError(
            f"{record.place}: expected an image, such as PNG or JPEG: {error}."
        ) from error
    return content, str(name)


# What Pillow raises for files that are no images, damaged ones, and ones of absurd sizes.
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)


def _open(content: Content) -> Image.Image:
    if isinstance(content, np.ndarray):
        return Image.fromarray(content)
    return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)


def _fingerprint(contents: Sequence[tuple[str, Content]], labels: np.ndarray) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of the images' names and labels."""
    lines = [f"{Path(place).name} {n}\n" for (place, _), n in zip(contents, labels, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _order(name: str) -> tuple[bool, int, str]:
    """Numbers in their order, then names."""
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _numbers(names: Sequence[str], classes: Sequence[str], text: str | None) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = sorted(set(names) - set(classes))
    if unknown:
        raise DataError(
            f"--held_out_data={text} has the classes {', '.join(unknown)}, which --data has not."
        )
    return np.array([numbers[name] for name in names], np.int32)


def _held_out(count: int, fraction: float) -> np.ndarray:
    """Numbers of those that are held out, spread evenly: folders hold a class each."""
    size = round(count * fraction)
    numbers: Any = (np.arange(size) + 0.5) * count / max(size, 1)
    spread: np.ndarray = numbers.astype(np.int64)
    return spread
