"""Checks of the input of image models."""

import jax

from models.errors import InputError


def check_pixels(pixels: jax.Array, size: tuple[int, int] | None, num_channels: int) -> None:
    """Raises InputError unless pixels are [B, *size, num_channels]; without a size, any will do."""
    expected = ("B", *(size or ("H", "W")), num_channels)
    fits = pixels.ndim == 4 and all(
        isinstance(want, str) or want == got
        for want, got in zip(expected, pixels.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"the pixels have the shape {list(pixels.shape)}, but this model takes "
            f"[{', '.join(map(str, expected))}]: batch, height, width, channels. Resize or crop "
            "the images as the checkpoint's preprocessor_config.json says."
        )
