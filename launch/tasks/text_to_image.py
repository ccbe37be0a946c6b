"""Text to image: paints what a prompt says."""

from pathlib import Path

from PIL import Image

from launch.errors import DataError
from launch.painter import Painter
from launch.picture import Picture
from launch.program import say
from launch.progress import progress
from launch.tasks.media_reader import mesh_of
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from models.diffusion import pipeline as diffusion

SUFFIX = ".png"


def paint(request: Request) -> None:
    """Writes the image and says where."""
    prompt, name, *negatives = parts_of(request, "a prompt and the PNG file to write", count=2)
    file = Path(name)
    if file.suffix.lower() != SUFFIX or file.exists() or not file.parent.is_dir():
        raise DataError(
            f"the image cannot be written to {file}: give a new file whose name ends in {SUFFIX}, "
            "in a directory that exists"
        )
    mesh = mesh_of(request)
    painter = Painter.open(request.directory, mesh, request.dtype)
    with progress("steps") as bar:

        def show(done: int, count: int) -> None:
            bar.total = count
            bar.update(done - bar.n)

        size = painter.pipeline.image_size
        numbers = painter.paint(
            Picture(
                prompt,
                negatives[0] if negatives else None,
                size,
                size,
                request.steps,
                request.guidance,
                request.seed,
            ),
            on_step=show,
        )
    Image.fromarray(numbers).save(file)
    say(f"{file}: {size} x {size} pixels")


TASK = Task(
    diffusion.TASK, "a prompt | the PNG file to write | what is not wanted (optional)", paint
)
