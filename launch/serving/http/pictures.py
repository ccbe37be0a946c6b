"""Images in the messages of a chat, for models that see them."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from launch.errors import DataError
from launch.images_in_text import ImageReading
from launch.serving.errors import RequestError
from launch.text import Tokenizer

MOST_PIXELS = 1 << 24
"""Of an image as it is sent: 4,096 by 4,096, which take a quarter of a second to decode."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that are read. Pillow has others whose readers start programs."""
_MARK = {"type": "image"}


class Seen(NamedTuple):
    """What a model reads of a conversation."""

    tokens: list[int]
    source: np.ndarray  # FP32 [I · H, W · C]: the rows of pixels of all images


@dataclass(frozen=True)
class Pictures:
    """What a model sees in conversations.

    Attributes:
      reading: how it reads the images of a text.
      most: images of one conversation.
      vocab_size: the number of tokens that a text may have.
    """

    reading: ImageReading
    most: int
    vocab_size: int

    def read(
        self,
        tokenizer: Tokenizer,
        prompt: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        marks: bool,
    ) -> Seen:
        """The tokens of a rendered conversation, and the images of its messages. The n-th token of
        these has the number `vocab_size + n`.

        Raises:
          RequestError: there are too many images, one cannot be read, or the text has other ones.
        """
        images = [
            _pixels(self.reading, f"messages[{place}].content", part)
            for place, message in enumerate(messages)
            for part in _parts(message)
            if part["type"] == "image"
        ]
        if len(images) > self.most:
            raise RequestError(
                f"the conversation has {len(images)} images, but at most {self.most} are taken "
                "(--max_images)",
                "messages",
            )
        try:
            tokens = self.reading.encode(tokenizer, prompt, len(images), marks=marks)
        except DataError as error:
            raise RequestError(str(error), "messages") from error
        there = tokens == self.reading.token
        tokens[there] = self.vocab_size + np.arange(np.count_nonzero(there))
        rows = [image.reshape(image.shape[0], -1) for image in images]
        return Seen(tokens.tolist(), np.concatenate(rows) if rows else np.zeros((0, 0)))

    def shown(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as the tokenizer numbers them."""
        return [token if token < self.vocab_size else self.reading.token for token in tokens]


def read_image_part(where: str, part: Any) -> dict[str, Any] | None:
    """A part of the type `image_url`, with a URL of its data, as templates take it. None if the
    part is something else.

    Raises:
      RequestError: the URL is to be fetched, which a server does not do, or is none.
    """
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise RequestError(f"{where}: image_url must be an object with a url", "messages")
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise RequestError(
            f"{where}: {url[:60]!r} is no image: nothing is fetched from elsewhere, so give the "
            "image itself, as data:image/png;base64,…",
            "messages",
        )
    return {**_MARK, "data": data}


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else ()


def _pixels(reading: ImageReading, where: str, part: Mapping[str, Any]) -> np.ndarray:
    """The pixels [H, W, C] of an image of that part. RequestError: it cannot be read."""
    try:
        data = base64.b64decode(part["data"], validate=True)
        with PIL.Image.open(BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise RequestError(
                    f"{where}: an image has {image.width} x {image.height} pixels, but at most "
                    f"{MOST_PIXELS:,} are read. Send a smaller one: the model sees "
                    f"{reading.side} x {reading.side}.",
                    "messages",
                )
            return reading.pixels(image.convert("RGB"))
    except (binascii.Error, OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
        raise RequestError(
            f"{where}: an image cannot be read; formats are {', '.join(FORMATS)}", "messages"
        ) from None
