"""`/v1/images/generations`: images of what a prompt says."""

import base64
import io
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from launch.picture import Picture
from launch.serving.errors import RequestError
from launch.serving.http.batch_metrics import BatchMetrics
from launch.serving.http.bodies import Body
from launch.serving.http.computing import Computing
from launch.serving.http.errors import check_model
from launch.serving.http.link import Link
from launch.serving.http.site import Endpoint, Site, WholeAnswer, model_entry

MOST_IMAGES = 10  # of one body, as OpenAI has it
MOST_STEPS = 1000  # of the noise schedule that models are trained with


class Size(NamedTuple):
    """The size of an image in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True)
class Painting:
    """A model of images behind the API."""

    name: str
    computing: Computing[Picture, np.ndarray]
    metrics: BatchMetrics
    sizes: Collection[Size]  # the first is the default
    steps: int  # by default


@dataclass(frozen=True)
class Images(WholeAnswer):
    """The parsed body of a request for images."""

    painting: Painting
    pictures: Sequence[Picture]

    @classmethod
    def read(cls, painting: Painting, body: Body) -> "Images":
        """Raises RequestError or HTTPError for a body that cannot be answered. Besides OpenAI's
        fields there are `seed`, `negative_prompt`, `guidance_scale` and `num_inference_steps`."""
        check_model(body.text("model", painting.name), painting.name)
        prompt = body.text("prompt")
        if not prompt:
            raise body.fail("prompt", "a string that is not empty")
        for name, only in (("response_format", "b64_json"), ("output_format", "png")):
            if body.text(name, only) != only:
                raise body.fail(name, only)
        if body.flag("stream"):
            raise body.fail("stream", "false: images are answered whole")
        count = body.integer("n", 1)
        if not 1 <= count <= MOST_IMAGES:
            raise body.fail("n", f"a number from 1 to {MOST_IMAGES}")
        steps = body.integer("num_inference_steps", painting.steps)
        if not 1 <= steps <= MOST_STEPS:
            raise body.fail("num_inference_steps", f"a number from 1 to {MOST_STEPS}")
        seed = body.integer("seed", secrets.randbits(31))
        if not 0 <= seed < 1 << 32:
            raise body.fail("seed", "a number from 0 to 2^32 - 1")
        guidance = body.number("guidance_scale", 0.0) if "guidance_scale" in body else None
        size = _size(painting, body)
        first = Picture(
            prompt,
            body.text("negative_prompt", None),
            size.height,
            size.width,
            steps,
            guidance,
            seed,
        )
        return cls(painting, [first._replace(seed=seed + place) for place in range(count)])

    async def whole(self) -> dict[str, Any]:
        """The images, in the order of their seeds, which count up."""
        with self.painting.metrics.measured():
            made = await self.painting.computing.compute(self.pictures)
        data = [{"b64_json": base64.b64encode(_png(pixels)).decode()} for pixels in made]
        return {"created": int(time.time()), "data": data, "output_format": "png"}


@dataclass(frozen=True)
class ImageModel:
    """The `Recipe` of a model of images."""

    name: str
    sizes: Sequence[Size]  # the first is the default
    steps: int  # by default
    created: int  # Unix time of the start

    def open(self, link: Link) -> Site:
        """What is shown of a model of images."""
        metrics = BatchMetrics(self.name)
        painting = Painting(self.name, Computing(link), metrics, self.sizes, self.steps)
        sizes = ", ".join(map(str, self.sizes))

        async def load() -> dict[str, Any]:
            return {"facts": f"images of {sizes}", **(await painting.computing.load())._asdict()}

        async def text() -> bytes:
            return metrics.text(await painting.computing.load())

        return Site(
            name=self.name,
            worker=link,
            endpoints={"/v1/images/generations": Endpoint(partial(Images.read, painting))},
            models=lambda: [model_entry(self.name, self.created)],
            metrics=text,
            load=load,
        )


def _size(painting: Painting, body: Body) -> Size:
    text = body.text("size", "auto")
    for size in painting.sizes:
        if text in ("auto", str(size)):
            return size
    raise RequestError(
        f"size is {text[:20]!r}; this server makes {', '.join(map(str, painting.sizes))} "
        "(--image_sizes)",
        "size",
    )


def _png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()
