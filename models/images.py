"""Images to pixels, by a checkpoint's preprocessor_config.json: resize, crop, rescale, normalize.

Equal to the image processors of transformers that use Pillow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from models.errors import ConfigError, InputError
from models.weights.fields import Fields, read_fields

PREPROCESSOR_FILE = "preprocessor_config.json"
PROCESSOR_FILE = "processor_config.json"  # of transformers 5: several processors in one file
_SUFFIXES = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")

_STANDARD = ([0.5] * 3, [0.5] * 3)  # mean and standard deviation of channels
_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_WARP_SIZE = 384  # from which ConvNeXt's processor does not crop


@dataclass(frozen=True)
class Preprocessing:
    """The steps of preprocessing, in order. Raises ConfigError if they are inconsistent."""

    size: tuple[int, int] | None = None  # height and width after resizing
    shortest_edge: int | None = None  # or the shorter of both; the shape stays
    resample: int = Image.Resampling.BICUBIC  # a filter of Pillow
    crop: tuple[int, int] | None = None  # height and width of the middle that is kept
    scale: float | None = 1 / 255  # multiplies numbers from 0 to 255
    mean: tuple[float, ...] | None = None  # subtracted from each channel …
    std: tuple[float, ...] | None = None  # … which is then divided by this

    def __post_init__(self) -> None:
        if self.size is not None and self.shortest_edge is not None:
            raise ConfigError("an image is resized to a size or to a shortest edge, not to both")
        if self.resample not in set(Image.Resampling):
            raise ConfigError(f"resample={self.resample} is not a filter of Pillow")
        if (self.mean is None) != (self.std is None):
            raise ConfigError("mean and std belong together")


@dataclass(frozen=True)
class _Kind:
    """The defaults of a processor of transformers."""

    size: Mapping[str, int]
    resample: int
    crop: int | None
    moments: tuple[list[float], list[float]]
    keeps_shape: bool  # one number as size is the shortest edge


_KINDS: Mapping[str, _Kind] = {
    "ViT": _Kind({"height": 224, "width": 224}, Image.Resampling.BILINEAR, None, _STANDARD, False),
    "DeiT": _Kind({"height": 256, "width": 256}, Image.Resampling.BICUBIC, 224, _STANDARD, False),
    "CLIP": _Kind({"shortest_edge": 224}, Image.Resampling.BICUBIC, 224, _CLIP, True),
    "ConvNext": _Kind({"shortest_edge": 384}, Image.Resampling.BICUBIC, None, _STANDARD, True),
}


def read_preprocessing(directory: Path) -> Preprocessing:
    """The preprocessing that a checkpoint's files describe.

    Raises ConfigError if they cannot be read or name a processor that is not supported.
    """
    fields = _fields(directory)
    name = "image_processor_type" if "image_processor_type" in fields else "feature_extractor_type"
    kind_name = fields.text(name)
    for suffix in _SUFFIXES:
        kind_name = kind_name.removesuffix(suffix)
    if kind_name not in _KINDS:
        raise fields.fail(name, f"supported are the processors of {', '.join(_KINDS)}")
    fields.refuse("do_pad", False, why="images are not padded")
    kind = _KINDS[kind_name]
    mean, std = kind.moments
    normalized = fields.flag("do_normalize", True)
    return Preprocessing(
        **_sizes(fields, kind, kind_name),
        resample=fields.integer("resample", int(kind.resample)),
        scale=fields.number("rescale_factor", 1 / 255) if fields.flag("do_rescale", True) else None,
        mean=tuple(fields.list("image_mean", mean)) if normalized else None,
        std=tuple(fields.list("image_std", std)) if normalized else None,
    )


def _fields(directory: Path) -> Fields:
    processor = directory / PROCESSOR_FILE
    if not (directory / PREPROCESSOR_FILE).is_file() and processor.is_file():
        return read_fields(processor).object("image_processor")
    return read_fields(directory / PREPROCESSOR_FILE)


def _sizes(fields: Fields, kind: _Kind, kind_name: str) -> dict[str, Any]:
    """The settings of resizing and cropping."""
    settings: dict[str, Any] = {}
    if fields.flag("do_resize", True):
        settings = _resized(fields, kind)
    if kind_name == "ConvNext" and settings:
        return _convnext_sizes(fields, settings)
    if fields.flag("do_center_crop", kind.crop is not None):
        settings["crop"] = _square_or_sides(fields, "crop_size", kind.crop)
    return settings


def _resized(fields: Fields, kind: _Kind) -> dict[str, Any]:
    if isinstance(fields.values.get("size"), int):
        edge = fields.positive("size")
        return {"shortest_edge": edge} if kind.keeps_shape else {"size": (edge, edge)}
    size = fields.object("size", Fields(kind.size, fields.where))
    if "shortest_edge" in size:
        size.refuse("longest_edge", why="only the shortest edge can be given")
        return {"shortest_edge": size.positive("shortest_edge")}
    return {"size": (size.positive("height"), size.positive("width"))}


def _convnext_sizes(fields: Fields, resized: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of ConvNeXt: small images are resized slightly larger and cropped, others warped."""
    if "shortest_edge" not in resized:
        raise fields.fail("size", "this processor needs a shortest edge")
    edge = resized["shortest_edge"]
    if edge >= _WARP_SIZE:
        return {"size": (edge, edge)}
    larger = int(edge / fields.number("crop_pct", 224 / 256))
    return {"shortest_edge": larger, "crop": (edge, edge)}


def _square_or_sides(fields: Fields, name: str, default: int | None) -> tuple[int, int]:
    if isinstance(fields.values.get(name), dict):
        sides = fields.object(name)
        return sides.positive("height"), sides.positive("width")
    return fields.pair(name, 224 if default is None else default)


def open_image(file: Path) -> Image.Image:
    """The image of a file, in red, green and blue.

    Raises InputError if it cannot be read.
    """
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}") from error


def pixels_of(image: Image.Image, settings: Preprocessing) -> np.ndarray:
    """Pixels FP32 [H, W, 3] of an image."""
    size = settings.size if settings.shortest_edge is None else _scaled(image, settings)
    image = image.convert("RGB")
    if size is not None:
        height, width = size
        image = image.resize((width, height), resample=Image.Resampling(settings.resample))
    pixels = np.asarray(image)
    pixels = pixels if settings.crop is None else _middle(pixels, settings.crop)
    pixels = pixels.astype(np.float32)
    if settings.scale is not None:
        pixels = pixels * np.float32(settings.scale)
    if settings.mean is not None and settings.std is not None:
        mean, std = (np.array(statistic, np.float32) for statistic in (settings.mean, settings.std))
        pixels = (pixels - mean) / std
    return pixels


def _scaled(image: Image.Image, settings: Preprocessing) -> tuple[int, int]:
    """Height and width whose shorter is the shortest edge."""
    short = settings.shortest_edge or 0
    long = int(short * max(image.size) / min(image.size))
    return (long, short) if image.width <= image.height else (short, long)


def _middle(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The middle [*size, C] of pixels [H, W, C], with zeros where there are none."""
    for axis, length in enumerate(size):
        missing = max(length - pixels.shape[axis], 0)
        widths = [(0, 0)] * pixels.ndim
        widths[axis] = (ceil(missing / 2), missing // 2)
        begin = (pixels.shape[axis] - length) // 2 + widths[axis][0]
        pixels = np.pad(pixels, widths)
        pixels = pixels.take(range(begin, begin + length), axis)
    return pixels
