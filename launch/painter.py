"""Text to image: a diffusion pipeline, and the tokenizers of its prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from launch import draws
from launch.clip_text import ClipText, open_clip_text
from launch.loading import load_with_progress
from launch.picture import Picture
from launch.program import say
from models.diffusion import pipeline as diffusion


@dataclass(frozen=True)
class Painter:
    """A pipeline that is ready to run."""

    pipeline: diffusion.Pipeline
    tokenizers: Sequence[ClipText]

    @classmethod
    def open(cls, directory: Path, mesh: Mesh, dtype: str | None = None) -> "Painter":
        """Of a directory of diffusers. Raises DataError or ModelsError for files that cannot be
        used."""
        kind = diffusion.kind_of(directory)
        tokenizers = [open_clip_text(directory / folder) for folder in kind.tokenizers]
        say(f"{kind.name} of {directory} on mesh {dict(mesh.shape)}")
        pipeline = diffusion.load(directory, mesh, dtype=dtype, load_part=load_with_progress)
        return cls(pipeline, tokenizers)

    def paint(
        self, picture: Picture, *, on_step: Callable[[int, int], None] = lambda done, count: None
    ) -> np.ndarray:
        """Pixels uint8 [H, W, 3]. Raises InputError for a size that does not suit the model."""
        pipeline, kind = self.pipeline, self.pipeline.kind
        guidance = kind.guidance if picture.guidance is None else picture.guidance
        made = diffusion.Request(picture.height, picture.width, picture.steps, guidance)
        noise = diffusion.first_noise(pipeline, made, 1, draws.key(picture.seed))
        positive = self._encoded(picture.prompt)
        negative = (
            diffusion.without_prompt(positive)
            if picture.negative is None and pipeline.zeros_without_prompt
            else self._encoded(picture.negative or "")
        )
        [pixels] = diffusion.make_images(pipeline, positive, negative, noise, made, on_step=on_step)
        return np.round(np.asarray(pixels) * 255).astype(np.uint8)

    def _encoded(self, prompt: str) -> diffusion.Prompt:
        lengths = [encoder.config.text.max_seq_len for encoder in self.pipeline.encoders]
        rows = [text.rows([prompt], n) for text, n in zip(self.tokenizers, lengths, strict=True)]
        return diffusion.encode(self.pipeline, rows)
