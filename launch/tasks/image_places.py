"""The tasks of models that say what is where in an image."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from launch.errors import DataError
from launch.tasks.media_reader import labels_of, open_model, read_pixels
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from launch.tasks.text_understanding import softmax, write_rows
from models.images import open_image
from models.layers.resize import resize
from models.parameters import merge

_SUFFIX = ".png"
LEAST = 0.5  # probability of an object that is shown


def segment(request: Request) -> None:
    """The classes and their shares of the image; writes the image of their numbers if asked to."""
    file, target = _files(request)
    pixels = read_pixels(request.directory, file)
    model = open_model(request)
    size = _size(file)
    classes = np.asarray(_classes(model.graph, model.parameters, pixels, size))[0]
    numbers, counts = np.unique(classes, return_counts=True)
    names = labels_of(model, int(numbers.max()) + 1)
    best = np.argsort(-counts, kind="stable")
    write_rows((names[numbers[i]], counts[i] / classes.size) for i in best)
    if target is not None:
        Image.fromarray(classes.astype(np.uint8)).save(target)


def estimate_depth(request: Request) -> None:
    """Writes the smallest, the mean and the largest depth, and an image of depths if asked to,
    white where the number is largest."""
    file, target = _files(request)
    pixels = read_pixels(request.directory, file)
    model = open_model(request)
    depths = np.asarray(_depths(model.graph, model.parameters, pixels, _size(file)))[0]
    numbers = {"smallest": depths.min(), "mean": depths.mean(), "largest": depths.max()}
    write_rows(numbers.items())
    if target is not None:
        shades = depths.clip(0) / max(float(depths.max()), np.finfo(np.float32).tiny)
        Image.fromarray((255 * shades).astype(np.uint8)).save(target)


def detect_objects(request: Request) -> None:
    """Writes class, probability and box of every object: left, top, right and bottom, in pixels."""
    file = Path(request.input)
    height, width = _size(file)
    pixels = read_pixels(request.directory, file)
    model = open_model(request)
    logits, boxes = map(np.asarray, _detections(model.graph, model.parameters, pixels))
    probabilities = softmax(logits[0])[:, :-1]  # without that of no object
    names = labels_of(model, probabilities.shape[-1])
    classes, chances = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    middle, half = boxes[0, :, :2], boxes[0, :, 2:] / 2
    corners = np.concatenate([middle - half, middle + half], axis=1) * np.tile([width, height], 2)
    write_rows(
        (names[classes[i]], chances[i], *corners[i])
        for i in np.argsort(-chances)
        if chances[i] > LEAST
    )


def _files(request: Request) -> tuple[Path, Path | None]:
    """The image, and the PNG file to write if there is one."""
    file, *targets = parts_of(
        request, "an image file, optionally with a PNG file to write", count=1
    )
    target = Path(targets[0]) if targets else None
    if target is not None and (
        target.suffix.lower() != _SUFFIX or target.exists() or not target.parent.is_dir()
    ):
        raise DataError(
            f"the image cannot be written to {target}. Give a new file whose name ends in "
            f"{_SUFFIX}, in an existing directory."
        )
    return Path(file), target


def _size(file: Path) -> tuple[int, int]:
    """Height and width of an image."""
    width, height = open_image(file).size
    return height, width


@partial(jax.jit, static_argnums=(0, 3))
def _classes(graph: Any, parameters: Any, pixels: jax.Array, size: tuple[int, int]) -> jax.Array:
    """The likeliest class of every pixel [B, *size]."""
    return jnp.argmax(resize(merge(graph, parameters)(pixels), size), axis=-1)


@partial(jax.jit, static_argnums=0)
def _detections(graph: Any, parameters: Any, pixels: jax.Array) -> Any:
    return merge(graph, parameters)(pixels)


@partial(jax.jit, static_argnums=(0, 3))
def _depths(graph: Any, parameters: Any, pixels: jax.Array, size: tuple[int, int]) -> jax.Array:
    """The depth of every pixel [B, *size]."""
    return resize(merge(graph, parameters)(pixels)[..., None], size, is_cubic=True)[..., 0]


TASKS = (
    Task("image-segmentation", "an image file | a PNG file to write (optional)", segment),
    Task("object-detection", "an image file", detect_objects),
    Task("depth-estimation", "an image file | a PNG file to write (optional)", estimate_depth),
)
