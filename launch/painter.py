"""A diffusion pipeline with the tokenizers of its prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from PIL import Image

from launch import draws
from launch.errors import DataError
from launch.loading import load_with_progress
from launch.picture import Picture
from launch.program import say
from launch.prompt_text import PromptText, open_clip_text, open_t5_text
from models.diffusion import pipeline as diffusion
from models.diffusion.adapter import VISION, ImagePrompt, vectors_of, with_adapter
from models.diffusion.kinds import IMAGE_TO_IMAGE, INPAINTING, T5, Kind, kind_of
from models.diffusion.lora import fuse
from models.diffusion.parts import Pipeline, load
from models.diffusion.prompts import Prompt, Rows, encode, without_prompt
from models.diffusion.sources import Source, make_source
from models.images import Preprocessing, clip_preprocessing, pixels_of, read_preprocessing
from models.pretrained import Pretrained, describe


@dataclass(frozen=True)
class ImageEncoder:
    """The encoder of the images that an IP-Adapter adds to prompts."""

    encoder: Pretrained
    preprocessing: Preprocessing

    @classmethod
    def open(cls, directory: Path, adapter: Path, mesh: Mesh, dtype: str | None) -> "ImageEncoder":
        """The image encoder of the pipeline in a directory, or the one beside the adapter's file.

        Raises DataError if there is none, ModelsError for files that cannot be used.
        """
        places = [place / "image_encoder" for place in (directory, adapter.parent)]
        place = next((place for place in places if place.is_dir()), None)
        if place is None:
            raise DataError(
                f"the IP-Adapter {adapter} needs an image encoder, but there is neither "
                f"{places[0]} nor {places[1]}"
            )
        encoder = load_with_progress(place, mesh, dtype=dtype, pad=True)
        if encoder.architecture.name != VISION:
            raise DataError(
                f"{place} holds a {encoder.architecture.name}, but must hold a {VISION}"
            )
        settings = directory / "feature_extractor"
        preprocessing = (
            read_preprocessing(settings)
            if settings.is_dir()
            else clip_preprocessing(encoder.config.vision.image_size)
        )
        return cls(encoder, preprocessing)

    def vector(self, image: Image.Image) -> jax.Array:
        """The vector of an image [1, dim]."""
        pixels = pixels_of(image, self.preprocessing)
        return vectors_of(self.encoder, jax.numpy.asarray(pixels[None]))


@dataclass(frozen=True)
class Painter:
    """A pipeline, ready to run."""

    pipeline: Pipeline
    tokenizers: Sequence[PromptText]
    image_encoder: ImageEncoder | None = None  # of images in prompts

    @classmethod
    def open(
        cls,
        directory: Path,
        mesh: Mesh,
        dtype: str | None = None,
        *,
        loras: Sequence[str] = (),
        control: Path | None = None,
        adapter: Path | None = None,
    ) -> "Painter":
        """The pipeline in a diffusers directory, with every LoRA `FILE` or `FILE:SCALE` merged into
        its weights, with the ControlNet in the directory `control` and the IP-Adapter in the file
        `adapter`.

        Raises DataError or ModelsError for files that cannot be used.
        """
        kind = kind_of(directory)
        tokenizers = [
            (open_t5_text if _reads_t5(directory / encoder) else open_clip_text)(directory / folder)
            for encoder, folder in zip(kind.encoders, kind.tokenizers, strict=True)
        ]
        say(f"{kind.name} of {directory} on mesh {dict(mesh.shape)}")
        pipeline = load(directory, mesh, dtype=dtype, control=control, load_part=load_with_progress)
        pipeline = with_loras(pipeline, loras)
        if adapter is None:
            return cls(pipeline, tokenizers)
        pipeline = with_adapter(pipeline, adapter, mesh)
        return cls(pipeline, tokenizers, ImageEncoder.open(directory, adapter, mesh, dtype))

    def paint(
        self, picture: Picture, *, on_step: Callable[[int, int], None] = lambda done, count: None
    ) -> np.ndarray:
        """Pixels uint8 [H, W, 3]. Raises InputError for a size that does not fit the model."""
        pipeline, kind = self.pipeline, self.pipeline.kind
        guidance = kind.guidance if picture.guidance is None else picture.guidance
        steps = picture.steps or kind.steps
        made = diffusion.Request(picture.height, picture.width, steps, guidance)
        key = draws.key(picture.seed)
        noise = diffusion.first_noise(pipeline, made, 1, key)

        def fresh(i: int) -> jax.Array:
            return jax.random.normal(jax.random.fold_in(key, i + 1), noise.shape)

        positive = self._encode_prompt(picture.prompt)
        [pixels] = diffusion.make_images(
            pipeline,
            positive,
            self._negative(picture, positive),
            noise,
            made,
            source=self._source(picture, fresh(-1)),
            hint=_hint(picture),
            image=self._image(picture),
            fresh=fresh,
            on_step=on_step,
        )
        return np.round(np.asarray(pixels) * 255).astype(np.uint8)

    def _source(self, picture: Picture, noise: jax.Array) -> Source | None:
        if picture.image is None:
            return None
        mask = None if picture.mask is None else picture.mask[None] / np.float32(255)
        task = IMAGE_TO_IMAGE if mask is None else INPAINTING
        strength = self.pipeline.kind.strength[task]
        strength = strength if picture.strength is None else picture.strength
        pixels = picture.image[None] / np.float32(127.5) - 1
        return make_source(self.pipeline, pixels, noise, strength, mask)

    def _image(self, picture: Picture) -> ImagePrompt | None:
        if picture.image_prompt is None:
            return None
        if self.image_encoder is None:
            raise DataError("an image in the prompt needs an IP-Adapter: give --ip_adapter=FILE")
        vector = self.image_encoder.vector(picture.image_prompt)
        return ImagePrompt(vector, picture.image_prompt_scale)

    def _negative(self, picture: Picture, positive: Prompt) -> Prompt:
        pipeline = self.pipeline
        if not pipeline.kind.compares:
            return positive  # nobody looks at it
        if picture.negative is None and pipeline.zeros_without_prompt:
            return without_prompt(positive)
        return self._encode_prompt(picture.negative or "")

    def _encode_prompt(self, prompt: str) -> Prompt:
        kind = self.pipeline.kind
        prompt = prompt.lower().strip() if kind.lowers else prompt
        return encode(
            self.pipeline,
            [
                Rows(*text.padded([prompt], _length(encoder, kind)))
                for text, encoder in zip(self.tokenizers, self.pipeline.encoders, strict=True)
            ],
        )


def _hint(picture: Picture) -> diffusion.Hint | None:
    if picture.control is None:
        return None
    pixels = jax.numpy.asarray(picture.control[None] / np.float32(255))
    return diffusion.Hint(pixels, picture.control_scale)


def _reads_t5(directory: Path) -> bool:
    return describe(directory).architecture.name == T5


def _length(encoder: Pretrained, kind: Kind) -> int:
    """Tokens of a prompt."""
    if encoder.architecture.name == T5 and kind.text_length is not None:
        return kind.text_length
    length: int = encoder.config.text.max_seq_len
    return length


def with_loras(pipeline: Pipeline, loras: Sequence[str]) -> Pipeline:
    """The pipeline with every LoRA `FILE` or `FILE:SCALE` merged into its weights.

    Raises DataError for a scale that is not a number, WeightsError for files that do not fit.
    """
    for text in loras:
        file, separator, scale = text.rpartition(":")
        try:
            factor = float(scale) if separator else 1.0
        except ValueError as error:
            raise DataError(
                f"--lora={text}: {scale!r} is not a number; write FILE or FILE:SCALE"
            ) from error
        pipeline = fuse(pipeline, Path(file if separator else text), factor)
    return pipeline
