"""Turns images into pixels as a checkpoint's preprocessor_config.json says: resize, crop, rescale,
normalize.

The results equal those of the image processors of transformers that use Pillow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from models.errors import ConfigError, InputError
from models.records import read_records
from models.weights.fields import CONFIG_FILE, Fields, read_fields, read_processor

_SUFFIXES = ("Fast", "Pil", "ImageProcessor", "FeatureExtractor")

_WARP_SIZE = 384  # from which ConvNeXt's processor does not crop


@dataclass(frozen=True)
class Preprocessing:
    """The steps of preprocessing, in order. Raises ConfigError if they are inconsistent."""

    size: tuple[int, int] | None = None  # height and width after resizing
    shortest_edge: int | None = None  # or the shorter of both; the shape stays
    longest_edge: int | None = None  # which the longer does not exceed
    multiple: int = 1  # of which both are, rounded down
    longer_first: int | None = None  # what the longer edge is brought to before all that
    resample: int = Image.Resampling.BICUBIC  # a filter of Pillow
    crop: tuple[int, int] | None = None  # height and width of the middle that is kept
    scale: float | None = 1 / 255  # multiplies numbers from 0 to 255
    mean: tuple[float, ...] | None = None  # subtracted from each channel …
    std: tuple[float, ...] | None = None  # … which is then divided by this
    flipped: bool = False  # blue stands first, red last

    def __post_init__(self) -> None:
        if self.size is not None and self.shortest_edge is not None:
            raise ConfigError("give a size or a shortest edge, not both")
        if self.resample not in set(Image.Resampling):
            raise ConfigError(f"resample={self.resample} is not a Pillow filter")
        if (self.mean is None) != (self.std is None):
            raise ConfigError("give both mean and std, or neither")


@dataclass(frozen=True)
class _Kind:
    """The defaults of a processor of transformers."""

    size: Mapping[str, int]
    resample: str  # a filter of Pillow
    mean: list[float]  # of the channels
    std: list[float]
    crop: int | None = None
    keeps_shape: bool = False  # one number as size is the shortest edge
    longest: int | None = None  # the longer edge, if it is limited
    multiple: int = 1  # of which both edges are
    normalizes: bool = True
    flips: bool = False  # blue stands first
    tiles: bool = False  # images are squares of `max_image_size`; they are not cut here
    divides_twice: bool = False  # by the deviation, unless `include_top` is false
    margin: float = 1.0  # by which a shortest edge is longer than the field says


_KINDS: Mapping[str, _Kind] = {
    name: _Kind(**record["settings"])
    for name, record in read_records(Path(__file__).with_name("processors.json"))
}
"""The processors of processors.json by name."""

_OF_MODELS: Mapping[str, str] = {
    **dict.fromkeys(("swin", "vit"), "ViT"),
    **dict.fromkeys(("clip", "clip_vision_model"), "CLIP"),
    **dict.fromkeys(("convnext", "convnextv2", "cvt", "resnet"), "ConvNext"),
    "beit": "Beit",
    "efficientnet": "EfficientNet",
    "deit": "DeiT",
    "dpt": "DPT",
    "levit": "Levit",
    "mobilenet_v2": "MobileNetV2",
    "mobilevit": "MobileViT",
    "yolos": "Yolos",
}
"""Model type -> the processor of files that name none, as those before transformers 4.10."""


def read_preprocessing(directory: Path) -> Preprocessing:
    """The preprocessing that a checkpoint's files describe.

    Raises ConfigError if they cannot be read or name a processor that is not supported.
    """
    fields = read_processor(directory, "image_processor")
    kind_name = _kind_of(fields, directory)
    if (
        kind_name != "Yolos" and not _KINDS[kind_name].tiles
    ):  # which pads images to the largest of them
        fields.refuse("do_pad", False, why="padding is not supported")
    fields.refuse("keep_aspect_ratio", False, why="keeping the aspect ratio is not supported")
    kind = _KINDS[kind_name]
    normalized = fields.flag("do_normalize", kind.normalizes)
    std = fields.list("image_std", kind.std)
    if kind.divides_twice and fields.flag("include_top", True):
        if not normalized or fields.flag("rescale_offset", False):
            raise fields.fail("include_top", "it needs do_normalize without rescale_offset")
        std = [number**2 for number in std]
    return Preprocessing(
        **_sizes(fields, kind, kind_name),
        resample=fields.integer("resample", int(Image.Resampling[kind.resample])),
        scale=fields.number("rescale_factor", 1 / 255) if fields.flag("do_rescale", True) else None,
        mean=tuple(fields.list("image_mean", kind.mean)) if normalized else None,
        std=tuple(std) if normalized else None,
        flipped=fields.flag("do_flip_channel_order", kind.flips),
    )


def _kind_of(fields: Fields, directory: Path) -> str:
    """The processor that the fields name, else that of the model type beside them."""
    name = "image_processor_type" if "image_processor_type" in fields else "feature_extractor_type"
    if name not in fields and (directory / CONFIG_FILE).is_file():
        model_type = read_fields(directory).text("model_type", "")
        if model_type in _OF_MODELS:
            return _OF_MODELS[model_type]
    kind_name = fields.text(name)
    for suffix in _SUFFIXES:
        kind_name = kind_name.removesuffix(suffix)
    if kind_name not in _KINDS:
        raise fields.fail(
            name, f"this processor is not supported; choose one of {', '.join(_KINDS)}"
        )
    return kind_name


def clip_preprocessing(size: int) -> Preprocessing:
    """CLIP's own for images of this size, as the reference takes it where no file says another."""
    mean, std = tuple(_KINDS["CLIP"].mean), tuple(_KINDS["CLIP"].std)
    return Preprocessing(shortest_edge=size, crop=(size, size), mean=mean, std=std)


def _sizes(fields: Fields, kind: _Kind, kind_name: str) -> dict[str, Any]:
    """The settings of resizing and cropping."""
    settings: dict[str, Any] = {}
    if kind.tiles:
        edge = fields.object("max_image_size", Fields(kind.size, fields.where))
        longer = fields.object("size", Fields({"longest_edge": 4 * 364}, fields.where))
        return {
            "size": (edge.positive("longest_edge"),) * 2,
            "longer_first": longer.positive("longest_edge"),
        }
    if fields.flag("do_resize", True):
        settings = _read_resize(fields, kind)
    if kind_name == "ConvNext" and settings:
        return _convnext_sizes(fields, settings)
    if fields.flag("do_center_crop", kind.crop is not None):
        settings["crop"] = _square_or_sides(fields, "crop_size", kind.crop)
    return settings


def _read_resize(fields: Fields, kind: _Kind) -> dict[str, Any]:
    if isinstance(fields.values.get("size"), int):
        edge = fields.positive("size")
        if kind.keeps_shape:
            return _edges(kind, edge, fields.positive("max_size", kind.longest))
        return {"size": (edge, edge)}
    size = fields.object("size", Fields(kind.size, fields.where))
    if "shortest_edge" in size:
        if kind.longest is None:
            size.refuse(
                "longest_edge",
                why="longest_edge is not supported for this processor; give only shortest_edge",
            )
        return _edges(
            kind, size.positive("shortest_edge"), size.positive("longest_edge", kind.longest)
        )
    sides = size.positive("height"), size.positive("width")
    multiple = fields.positive("ensure_multiple_of", 1)
    if any(side % multiple for side in sides):
        raise fields.fail("ensure_multiple_of", f"the size {sides} is not a multiple of it")
    return {"size": sides}


def _edges(kind: _Kind, shortest: int, longest: int | None) -> dict[str, Any]:
    """The settings of an image that keeps its shape."""
    return {
        "shortest_edge": int(kind.margin * shortest),
        "longest_edge": longest,
        "multiple": kind.multiple,
    }


def _convnext_sizes(fields: Fields, resized: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of ConvNeXt: small images are resized slightly larger and cropped, others warped."""
    if "shortest_edge" not in resized:
        raise fields.fail("size", "this processor needs shortest_edge")
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
    """The image in a file, as RGB.

    Raises InputError if it cannot be read.
    """
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}") from error


def pixels_of(image: Image.Image, settings: Preprocessing) -> np.ndarray:
    """The preprocessed pixels of an image, FP32 [H, W, 3]."""
    size = settings.size if settings.shortest_edge is None else _scale_size(image, settings)
    image, resample = image.convert("RGB"), Image.Resampling(settings.resample)
    if settings.longer_first is not None:
        image = image.resize(_even(image, settings.longer_first), resample=resample)
    if size is not None:
        height, width = size
        image = image.resize((width, height), resample=resample)
    pixels = np.asarray(image)
    pixels = pixels if settings.crop is None else _middle(pixels, settings.crop)
    pixels = pixels.astype(np.float32)
    if settings.scale is not None:
        pixels = pixels * np.float32(settings.scale)
    if settings.mean is not None and settings.std is not None:
        mean, std = (np.array(statistic, np.float32) for statistic in (settings.mean, settings.std))
        pixels = (pixels - mean) / std
    return pixels[..., ::-1] if settings.flipped else pixels


def _even(image: Image.Image, longer: int) -> tuple[int, int]:
    """Width and height whose longer is as said and whose shorter is even."""
    if image.width >= image.height:
        shorter = int(longer / (image.width / image.height))
        return longer, max(shorter + shorter % 2, 1)
    shorter = int(longer * (image.width / image.height))
    return max(shorter + shorter % 2, 1), longer


def _scale_size(image: Image.Image, settings: Preprocessing) -> tuple[int, int]:
    """Height and width whose shorter is the shortest edge, if the longer is not too long then."""
    short: float = settings.shortest_edge or 0
    ratio = max(image.size) / min(image.size)
    exact = short
    if settings.longest_edge is not None and short * ratio > settings.longest_edge:
        exact = settings.longest_edge / ratio
        short = round(exact)
    long = int(exact * max(image.size) / min(image.size))
    sizes = [int(size) // settings.multiple * settings.multiple for size in (short, long)]
    return (sizes[1], sizes[0]) if image.width <= image.height else (sizes[0], sizes[1])


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
