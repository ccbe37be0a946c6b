"""Text to image: paints what a prompt says."""

from pathlib import Path

import numpy as np
from PIL import Image

from launch import draws
from launch.clip_text import open_clip_text
from launch.errors import DataError
from launch.generator import load_with_progress, progress
from launch.program import say
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
    kind = diffusion.kind_of(request.directory)
    texts = [open_clip_text(request.directory / folder) for folder in kind.tokenizers]
    mesh = mesh_of(request)
    say(f"{kind.name} of {request.directory} on mesh {dict(mesh.shape)}")
    pipeline = diffusion.load(
        request.directory, mesh, dtype=request.dtype, load_part=load_with_progress
    )
    lengths = [encoder.config.text.max_seq_len for encoder in pipeline.encoders]

    def encoded(prompt: str) -> diffusion.Prompt:
        rows = [text.rows([prompt], n) for text, n in zip(texts, lengths, strict=True)]
        return diffusion.encode(pipeline, rows)

    size = pipeline.image_size
    guidance = kind.guidance if request.guidance is None else request.guidance
    made = diffusion.Request(size, size, request.steps, guidance)
    positive = encoded(prompt)
    negative = (
        diffusion.without_prompt(positive)
        if not negatives and pipeline.zeros_without_prompt
        else encoded(negatives[0] if negatives else "")
    )
    noise = diffusion.first_noise(pipeline, made, 1, draws.key(request.seed))
    with progress("steps") as bar:

        def show(done: int, count: int) -> None:
            bar.total = count
            bar.update(done - bar.n)

        [pixels] = diffusion.make_images(pipeline, positive, negative, noise, made, on_step=show)
    numbers = np.round(np.asarray(pixels) * 255).astype(np.uint8)
    Image.fromarray(numbers).save(file)
    say(f"{file}: {size} x {size} pixels")


TASK = Task(
    diffusion.TASK, "a prompt | the PNG file to write | what is not wanted (optional)", paint
)
