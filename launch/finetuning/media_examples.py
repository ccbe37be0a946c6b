"""Records of images and sound: what is read at the start, and what is made when a row is needed."""

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from launch.data.records import Record, RecordError, field_of
from launch.errors import DataError
from launch.finetuning.sounds import length_of_sound, sound_of, transcript_of
from launch.finetuning.text_examples import Reading, Row
from models.errors import ModelsError
from models.images import Preprocessing, open_image, read_preprocessing
from models.images import pixels_of as pixels_of_image
from models.weights.fields import PREPROCESSOR_FILE, has_processor

_HALF = (0.5, 0.5, 0.5)


def labelled_image(record: Record, reading: Reading) -> Row:
    """The image as it is stored, and `Reading.labels_of`."""
    return {"image": _image_of(record), **reading.labels_of(record)}


def check_sizes(
    records: Sequence[Sequence[Record]], preprocessing: Preprocessing, *, skips: bool
) -> None:
    """Raises DataError if images of several sizes stay so: a batch is an array. Raises RecordError
    for what cannot be read, unless `skips`."""
    if preprocessing.size is not None or preprocessing.crop is not None:
        return
    first: tuple[tuple[int, int], str] | None = None
    for record in itertools.chain(*records):
        try:
            size = _size_of(record)
        except RecordError:
            if not skips:
                raise
            continue
        first = first or (size, record.place)
        if size != first[0]:
            shapes = [f"{height}x{width}" for width, height in (first[0], size)]
            raise DataError(
                f"images have several sizes, such as {shapes[0]} ({first[1]}) and {shapes[1]} "
                f"({record.place}), and nothing says what the model takes. Put a "
                f'{PREPROCESSOR_FILE} with `"size": {{"height": …, "width": …}}` beside the model.'
            )


def _image_of(record: Record) -> Any:
    """The image as it is stored. Raises RecordError if it is none."""
    image = field_of(record, "image")
    if isinstance(image, str):
        image = record.file(image)
    known = isinstance(image, Path | np.ndarray) or (isinstance(image, Mapping) and image)
    if not known:
        raise RecordError(
            f"{record.place}: expected an image as a path, as bytes or as an array, not a "
            f"{type(image).__name__}."
        )
    return image


def _size_of(record: Record) -> tuple[int, int]:
    """Width and height. Raises RecordError for what is no image."""
    try:
        return _open(_image_of(record)).size
    except (ModelsError, OSError) as error:
        raise RecordError(f"{record.place}: cannot use an image: {error}") from error


def image_row(row: Row, preprocessing: Preprocessing) -> Row:
    """`pixels` [H, W, 3], FP32, in place of the image. Raises DataError if it cannot be read."""
    try:
        pixels = pixels_of_image(_open(row["image"]), preprocessing)
    except (ModelsError, OSError) as error:
        raise DataError(f"cannot use an image: {error}") from error
    return {"pixels": pixels, "labels": row["labels"], "weights": row["weights"]}


def preprocessing_for(directory: Path | None, config: Any) -> Preprocessing:
    """Reads how a checkpoint preprocesses images.

    Without files that say so, images have numbers from -1 to 1, and the size that the model takes,
    if it takes one only.
    """
    if directory is not None and has_processor(directory):
        preprocessing = read_preprocessing(directory)
    else:
        preprocessing = Preprocessing(mean=_HALF, std=_HALF)
    size = getattr(config, "image_size", None)
    if size is not None and preprocessing.size is None and preprocessing.crop is None:
        return replace(preprocessing, size=tuple(size), shortest_edge=None)
    return preprocessing


def labelled_sound(record: Record, reading: Reading) -> Row | None:
    """The sound as it is stored, and `Reading.labels_of`; sounds longer than a row are left out."""
    sound = reading.sound
    assert sound is not None
    labels = reading.labels_of(record)
    length = length_of_sound(record, sound.sampling_rate)
    if length < sound.shortest:
        raise RecordError(
            f"{record.place}: the sound has {length} samples, but the model needs at least "
            f"{sound.shortest}, at {sound.sampling_rate} samples per second."
        )
    if sound.longest is not None and length > sound.longest:
        reading.counts.dropped += 1
        return None
    return {"sound": sound_of(record), **labels}


def transcribed_sound(record: Record, reading: Reading) -> Row | None:
    """The sound as it is stored, and `tokens`, `targets`, `weights` [T] of what is said."""
    assert reading.sound is not None
    sound, text = sound_of(record), transcript_of(record)
    # What cannot be read is found at the start.
    length_of_sound(record, reading.sound.sampling_rate)
    opening = np.array(reading.opening, np.int32)
    said = reading.writer.tokenizer.encode(text, marks=False)
    tokens = np.concatenate([opening, said, [reading.writer.end or 0]]).astype(np.int32)
    if not reading.fits(len(tokens) - 1):
        return None
    weights = np.ones(len(tokens) - 1, np.float32)
    weights[: len(opening) - 1] = 0  # what opens a text is given, not learnt
    return {
        "sound": sound,
        "tokens": reading.filled(tokens[:-1], reading.pad),
        "targets": reading.filled(tokens[1:]),
        "weights": reading.filled(weights),
    }


def _open(image: Any) -> Image.Image:
    if isinstance(image, Path):
        return open_image(image)
    if isinstance(image, np.ndarray):
        return Image.fromarray(image)
    # As Hugging Face `datasets` stores images in tables.
    if image.get("bytes") is not None:
        return Image.open(io.BytesIO(image["bytes"])).convert("RGB")
    return open_image(Path(image["path"]))
