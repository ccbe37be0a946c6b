"""A model of images, from its files on."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from launch.errors import ModelError
from launch.meshes import make_mesh, parse_mesh
from launch.painter import Painter
from launch.picture import Picture
from launch.progress import progress
from launch.serving.backend import Backend
from launch.serving.batcher import Batcher
from launch.serving.desk import BatchDesk
from launch.serving.errors import ServingError
from launch.serving.http.images import ImageModel, Size
from launch.serving.model_choice import ModelChoice

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


class PaintingWork:
    """The work of a Batcher: one image after the other, which depends on its seed alone."""

    def __init__(self, painter: Painter) -> None:
        self._painter = painter

    def group(self, waiting: Sequence[Picture]) -> Sequence[int]:
        """The place of the picture to paint next: the first that waits."""
        return [0]

    def compute(self, items: Sequence[Picture]) -> Sequence[np.ndarray]:
        """Pixels uint8 [H, W, 3] of each."""
        return [self._painter.paint(picture) for picture in items]


@contextmanager
def image_model(choice: ModelChoice) -> Iterator[Backend]:
    """Images of prompts, with everything compiled."""
    if choice.model is None:
        raise ModelError("a model of images is served from its directory: give --model")
    painter = Painter.open(choice.model, make_mesh(parse_mesh(choice.mesh)))
    height, width = painter.pipeline.image_size
    sizes = read_sizes(
        choice.names.image_sizes,
        Size(width, height),
        painter.pipeline.autoencoder.config.reduction,
    )
    work = PaintingWork(painter)
    with progress("programs", total=len(sizes)) as bar:
        for size in sizes:
            work.compute([Picture("", None, size.height, size.width, 1, None, 0)])
            bar.update()
    with Batcher[Picture, np.ndarray](work, max_waiting=choice.engine.max_num_waiting) as batcher:
        recipe = ImageModel(
            choice.name, sizes, painter.pipeline.kind.steps, created=int(time.time())
        )
        yield Backend(recipe, BatchDesk(batcher))


def read_sizes(text: str | None, otherwise: Size, multiple: int) -> list[Size]:
    """ "512x512,768x512" -> sizes; the other one if there is none.

    Raises ServingError for anything else, and for what is no multiple of `multiple`.
    """
    if text is None:
        return [otherwise]
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        size = Size(*map(int, match.groups())) if match else Size(0, 0)
        if not min(size) or size.width % multiple or size.height % multiple:
            raise ServingError(
                f"--image_sizes={text}: {part!r} is not a size; write "
                f"{otherwise.width}x{otherwise.height},…, with "
                f"multiples of {multiple}"
            )
        sizes.append(size)
    return sizes
