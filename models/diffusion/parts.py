"""A directory of diffusers: the models of a pipeline, each in its folder."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from jax.sharding import Mesh

from models import pretrained
from models.diffusion.kinds import CLIP, INDEX_FILE, PENULTIMATE, Kind, kind_of
from models.diffusion.schedule import Schedule, read_schedule
from models.errors import ConfigError, WeightsError
from models.pretrained import Pretrained
from models.weights.fields import read_fields

CONTROL = "controlnet"  # folder of a ControlNet


class Pipeline(NamedTuple):
    """All parts of a diffusion model."""

    kind: Kind
    encoders: tuple[Pretrained, ...]
    denoiser: Pretrained
    autoencoder: Pretrained
    schedule: Schedule
    zeros_without_prompt: bool  # an absent negative prompt is zeros, not the empty text
    control: Pretrained | None  # a ControlNet
    wants_score: bool  # the denoiser is told how beautiful the image is to be (SDXL's refiner)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model was made for, in pixels."""
        height, width = self.denoiser.config.sides
        reduction: int = self.autoencoder.config.reduction
        return height * reduction, width * reduction

    @property
    def multiple(self) -> int:
        """What divides height and width of every image, in pixels."""
        multiple: int = self.autoencoder.config.reduction * self.denoiser.config.multiple
        return multiple

    @property
    def sees_mask(self) -> bool:
        """The denoiser is made for inpainting: it sees the mask, and what the mask leaves."""
        wide: int = self.denoiser.config.in_channels
        latent: int = self.autoencoder.config.latent_channels
        return wide == 2 * latent + 1

    def folders(self) -> Iterator[tuple[str, Pretrained]]:
        """Every model and the name of its folder."""
        yield from zip(self.kind.encoders, self.encoders, strict=True)
        yield self.kind.denoiser, self.denoiser
        yield "vae", self.autoencoder
        if self.control is not None:
            yield CONTROL, self.control

    def with_models(self, models: Mapping[str, Pretrained]) -> "Pipeline":
        """The pipeline with other models, by folder as in `folders`."""
        return self._replace(
            encoders=tuple(models[folder] for folder in self.kind.encoders),
            denoiser=models[self.kind.denoiser],
            autoencoder=models["vae"],
            control=models.get(CONTROL),
        )


class LoadPart(Protocol):
    """Loads one part; None as dtype is that of the file."""

    def __call__(
        self, directory: Path, mesh: Mesh | None, *, dtype: str | None = None
    ) -> Pretrained: ...


def _load_part(directory: Path, mesh: Mesh | None, *, dtype: str | None = None) -> Pretrained:
    return pretrained.load(directory, mesh, dtype=dtype, param_dtype=dtype)


def load(
    directory: Path,
    mesh: Mesh | None = None,
    *,
    dtype: str | None = None,
    control: Path | None = None,
    load_part: LoadPart = _load_part,
) -> Pipeline:
    """The pipeline of a directory of diffusers, its weights sharded over the mesh.

    `control` is the directory of a ControlNet to stand beside the denoiser.
    `dtype` is that of weights and activations of all parts but the autoencoder, which keeps that
    of its file. Raises ConfigError, ShardingError or WeightsError; see `models.pretrained.load`.
    """
    kind = kind_of(directory)
    fields = read_fields(directory / INDEX_FILE)

    def part(path: Path, architectures: Sequence[str], dtype: str | None) -> Pretrained:
        architecture = pretrained.describe(path).architecture.name
        if architecture not in architectures:
            raise ConfigError(
                f"{path} holds a {architecture}, but it must hold {' or '.join(architectures)}"
            )
        return load_part(path, mesh, dtype=dtype)

    if control is None and kind.is_controlled:
        control = directory / CONTROL
    pipeline = Pipeline(
        kind,
        tuple(
            part(directory / folder, kind.architectures.get(folder, CLIP), dtype)
            for folder in kind.encoders
        ),
        part(directory / kind.denoiser, kind.denoisers, dtype),
        part(directory / "vae", ["AutoencoderKL"], None),
        read_schedule(directory / "scheduler"),
        fields.flag("force_zeros_for_empty_prompt", kind.reads == PENULTIMATE),
        None if control is None else part(control, ["ControlNetModel"], dtype),
        fields.flag("requires_aesthetics_score", False),
    )
    _check_control(directory if control is None else control, pipeline)
    _check_channels(directory, pipeline)
    return pipeline


def _check_channels(directory: Path, pipeline: Pipeline) -> None:
    wide, latent = pipeline.denoiser.config.in_channels, pipeline.autoencoder.config.latent_channels
    if wide != latent and not pipeline.sees_mask:
        raise ConfigError(
            f"{directory}: the denoiser takes {wide} channels, but the autoencoder's latents have "
            f"{latent}. It must take {latent}, or {2 * latent + 1} for inpainting."
        )


def _check_control(directory: Path, pipeline: Pipeline) -> None:
    if pipeline.control is None:
        return
    theirs, own = pipeline.control.config, pipeline.denoiser.config
    names = ("in_channels", "channels", "layers", "context_dim", "time_ids", "down_attention")
    differing = [n for n in names if getattr(theirs, n) != getattr(own, n, None)]
    if differing:
        raise ConfigError(
            f"{directory}: this ControlNet belongs to another denoiser: they differ in "
            f"{', '.join(differing)}"
        )
    if theirs.reduction != pipeline.autoencoder.config.reduction:
        raise ConfigError(
            f"{directory}: this ControlNet reduces images by a factor of {theirs.reduction}, but "
            f"the autoencoder by {pipeline.autoencoder.config.reduction}. Both must be equal."
        )


def save(directory: Path, pipeline: Pipeline, source: Path) -> None:
    """Writes the pipeline as a directory of diffusers. What is no model of it, such as tokenizers,
    is copied from `source`, the directory it was loaded from.

    Raises WeightsError if the directory holds something already, or cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        raise WeightsError(
            f"{directory} is not empty, and nothing is overwritten. Give another directory."
        )
    models = dict(pipeline.folders())
    directory.mkdir(parents=True, exist_ok=True)
    for folder, model in models.items():
        pretrained.save(directory / folder, model)
    for part in sorted(source.iterdir()):
        if part.is_dir() and part.name not in models and not part.name.startswith("."):
            shutil.copytree(part, directory / part.name)
    shutil.copyfile(source / INDEX_FILE, directory / INDEX_FILE)
