"""How language models that see images read them in a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from launch.errors import DataError
from launch.text import Tokenizer
from models.images import Preprocessing, pixels_of, read_preprocessing


class Marks(NamedTuple):
    """The special tokens that stand for an image in a text."""

    image: str  # written by people and chat templates
    token: str  # that stands for a token of the image
    before: str
    after: str


# As the processors of transformers write it; of Idefics3, without cutting images into tiles.
MARKS: Mapping[str, Marks] = {
    "gemma3": Marks(
        "<start_of_image>",
        "<image_soft_token>",
        "\n\n<start_of_image>",
        "<end_of_image>\n\n",
    ),
    **dict.fromkeys(
        ("idefics3", "smolvlm"),
        Marks(
            "<image>",
            "<image>",
            "<fake_token_around_image><global-img>",
            "<fake_token_around_image>",
        ),
    ),
}
"""The marks by the `model_type` of the model."""


@dataclass(frozen=True)
class ImageReading:
    """The images of a text as one model reads them."""

    directory: Path
    marks: Marks
    preprocessing: Preprocessing
    token: int  # the ID that stands for one token of an image
    size: int  # tokens of an image
    side: int  # pixels

    @classmethod
    def of(cls, directory: Path, model_type: str, config: Any) -> "ImageReading":
        """The reading of a model whose files are in a directory.

        Raises:
          ModelsError: the settings of its images cannot be read.
          DataError: they make images of another size than the model sees.
        """
        side, preprocessing = config.vision.image_size, read_preprocessing(directory)
        made = pixels_of(PIL.Image.new("RGB", (side, 2 * side)), preprocessing).shape[:2]
        if made != (side, side):
            raise DataError(
                f"the preprocessor_config.json of {directory} makes images of {made[0]} x "
                f"{made[1]} pixels, but the model sees {side} x {side}: correct its sizes"
            )
        return cls(
            directory=directory,
            marks=MARKS[model_type],
            preprocessing=preprocessing,
            token=config.image_token,
            size=config.image_tokens,
            side=side,
        )

    def pixels(self, image: PIL.Image.Image) -> np.ndarray:
        """The pixels FP32 [H, W, 3] that the model sees of an image."""
        return pixels_of(image, self.preprocessing)

    def encode(self, tokenizer: Tokenizer, text: str, images: int, *, marks: bool) -> np.ndarray:
        """The tokens int32 [T] of a text in which `marks.image` stands for each of its images;
        `marks` has the tokenizer add its own at both ends.

        Raises:
          DataError: the text does not have that many images.
        """
        image = self.marks.before + self.marks.token * self.size + self.marks.after
        tokens = tokenizer.encode(text.replace(self.marks.image, image), marks=marks)
        count = int(np.sum(tokens == self.token))
        if count != images * self.size:
            raise DataError(
                f"the prompt of {self.directory} has {count} image tokens, but {images} "
                f"image{'s have' if images != 1 else ' has'} {images * self.size}. Check that the "
                f"tokenizer belongs to the model, that its chat template writes {self.marks.image} "
                "for an image, and that no text has this mark in it."
            )
        return tokens
