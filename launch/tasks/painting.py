"""Generates images for a prompt: from noise, from another image, or within a masked part of one."""

from pathlib import Path

import numpy as np
from PIL import Image

from launch.errors import DataError
from launch.painter import Painter
from launch.picture import Picture
from launch.program import say
from launch.progress import progress
from launch.tasks.media_reader import mesh_of
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from models.diffusion.kinds import IMAGE_TO_IMAGE, INPAINTING, TEXT_TO_IMAGE
from models.images import open_image

SUFFIX = ".png"
_TARGET = "the PNG file to write"
_NEGATIVE = "a negative prompt (optional)"


def paint(request: Request) -> None:
    """Writes the image and prints its path."""
    prompt, name, *negatives = parts_of(request, "a prompt and the PNG file to write", count=2)
    file = _new_file(name)
    painter = _painter(request)
    size = painter.pipeline.image_size
    _paint(painter, request, file, _picture(request, prompt, negatives, size))


def paint_over(request: Request) -> None:
    """Writes an image based on another one, and prints its path."""
    names = "a prompt, an image file and the PNG file to write"
    prompt, image, name, *negatives = parts_of(request, names, count=3)
    file = _new_file(name)
    source = open_image(Path(image))
    painter = _painter(request)
    size = _fitting(source, painter.pipeline.multiple)
    picture = _picture(request, prompt, negatives, size)
    _paint(painter, request, file, picture._replace(image=_resize(source, size)))


def inpaint(request: Request) -> None:
    """Writes an image with its masked part repainted, and prints its path."""
    names = "a prompt, an image file, its mask file and the PNG file to write"
    prompt, image, mask, name, *negatives = parts_of(request, names, count=4)
    file = _new_file(name)
    source, part = open_image(Path(image)), open_image(Path(mask)).convert("L")
    if source.size != part.size:
        raise DataError(
            f"the mask {mask} has {part.width} x {part.height} pixels, but {image} has "
            f"{source.width} x {source.height}. Both must have the same size."
        )
    painter = _painter(request)
    size = _fitting(source, painter.pipeline.multiple)
    picture = _picture(request, prompt, negatives, size)
    _paint(
        painter,
        request,
        file,
        picture._replace(image=_resize(source, size), mask=_resize(part, size)),
    )


def _new_file(name: str) -> Path:
    file = Path(name)
    if file.suffix.lower() != SUFFIX or file.exists() or not file.parent.is_dir():
        raise DataError(
            f"the image cannot be written to {file}. Give a new file whose name ends in {SUFFIX}, "
            "in an existing directory."
        )
    return file


def _painter(request: Request) -> Painter:
    return Painter.open(
        request.directory,
        mesh_of(request),
        request.dtype,
        loras=request.loras,
        control=request.controlnet,
        adapter=request.ip_adapter,
    )


def _picture(request: Request, prompt: str, negatives: list[str], size: tuple[int, int]) -> Picture:
    """What is asked for, of a height and width."""
    control = None
    if request.control is not None:
        control = _resize(open_image(request.control).convert("RGB"), size)
    prompting = None if request.image_prompt is None else open_image(request.image_prompt)
    return Picture(
        prompt,
        negatives[0] if negatives else None,
        *size,
        request.steps,
        request.guidance,
        request.seed,
        strength=request.strength,
        control=control,
        control_scale=request.control_scale,
        image_prompt=prompting,
        image_prompt_scale=request.image_prompt_scale,
    )


def _fitting(image: Image.Image, multiple: int) -> tuple[int, int]:
    """Height and width of an image, rounded down to multiples."""
    height, width = (side - side % multiple for side in (image.height, image.width))
    if not height or not width:
        raise DataError(
            f"the image has {image.width} x {image.height} pixels, but this model needs at least "
            f"{multiple} x {multiple}"
        )
    return height, width


def _resize(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Pixels uint8, as diffusers resizes images."""
    return np.asarray(image.resize(size[::-1], Image.Resampling.LANCZOS))


def _paint(painter: Painter, request: Request, file: Path, picture: Picture) -> None:
    with progress("steps") as bar:

        def show(done: int, count: int) -> None:
            bar.total = count
            bar.update(done - bar.n)

        numbers = painter.paint(picture, on_step=show)
    Image.fromarray(numbers).save(file)
    say(f"{file}: {picture.width} x {picture.height} pixels")


TASKS = (
    Task(TEXT_TO_IMAGE, f"a prompt | {_TARGET} | {_NEGATIVE}", paint),
    Task(
        IMAGE_TO_IMAGE,
        f"a prompt | an image file | {_TARGET} | {_NEGATIVE}",
        paint_over,
    ),
    Task(
        INPAINTING,
        f"a prompt | an image file | its mask file, white where it is to be repainted | {_TARGET} "
        f"| {_NEGATIVE}",
        inpaint,
    ),
)
