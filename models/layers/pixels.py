"""Checks of the input of models of images, sound and series."""

from collections.abc import Mapping

import jax

from models.errors import InputError

_ADVICE = "the checkpoint's preprocessor_config.json says."


def check_shape(what: str, x: jax.Array, axes: Mapping[str, object], advice: str = "") -> None:
    """Raises InputError unless x has these axes: by name the size of each, or a letter if any will
    do."""
    fits = x.ndim == len(axes) and all(
        isinstance(want, str) or want == got
        for want, got in zip(axes.values(), x.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"the {what} have the shape {list(x.shape)}, but this model takes "
            f"[{', '.join(map(str, axes.values()))}]: {', '.join(axes)}{advice}"
        )


def check_pixels(pixels: jax.Array, size: tuple[int, int] | None, num_channels: int) -> None:
    """Raises InputError unless pixels are [B, *size, num_channels]; without a size, any will do."""
    height, width = size or ("H", "W")
    axes = {"batch": "B", "height": height, "width": width, "channels": num_channels}
    check_shape("pixels", pixels, axes, f". Resize or crop the images as {_ADVICE}")


def check_spectrograms(sounds: jax.Array, frames: int, bands: int) -> None:
    """Raises InputError unless spectrograms are [B, frames, bands]."""
    axes = {"batch": "B", "frames": frames, "mel bands": bands}
    check_shape("spectrograms", sounds, axes, f". Pad or cut the sound as {_ADVICE}")
