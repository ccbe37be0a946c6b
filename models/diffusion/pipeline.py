"""Text to image: encode the prompt, denoise latents step by step, decode them.

Axis names: B images, T tokens, H height and W width in pixels, h and w of the latents, C channels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from models import pretrained
from models.diffusion.samplers import State, Steps, begin, plan, step
from models.diffusion.schedule import Schedule, read_schedule
from models.diffusion.unet import UNet, check_latents
from models.errors import ConfigError, InputError
from models.parameters import Parameters, merge
from models.pretrained import Pretrained
from models.weights.fields import read_fields

INDEX_FILE = "model_index.json"
TASK = "text-to-image"


@dataclass(frozen=True)
class Kind:
    """The differences between the pipelines of diffusers.

    Attributes:
      name: of diffusers' class.
      encoders, tokenizers: folders of those of the prompt, in order.
      penultimate: the denoiser sees the encoders' states before their last block, side by side,
        and the pooled prompt of the last encoder; otherwise the states after the last norm.
      guidance: how far predictions go beyond the one without the prompt, by default.
    """

    name: str
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    penultimate: bool
    guidance: float
    task: str = TASK


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "StableDiffusionPipeline",
            ("text_encoder",),
            ("tokenizer",),
            penultimate=False,
            guidance=7.5,
        ),
        Kind(
            "StableDiffusionXLPipeline",
            ("text_encoder", "text_encoder_2"),
            ("tokenizer", "tokenizer_2"),
            penultimate=True,
            guidance=5.0,
        ),
    )
}


class Pipeline(NamedTuple):
    """All parts of a diffusion model."""

    kind: Kind
    encoders: tuple[Pretrained, ...]
    unet: Pretrained
    autoencoder: Pretrained
    schedule: Schedule
    zeros_without_prompt: bool  # an absent negative prompt is zeros, not the empty text

    @property
    def image_size(self) -> int:
        """Height and width that the model was made for, in pixels."""
        return self.unet.config.sample_size * self.autoencoder.config.reduction


class Prompt(NamedTuple):
    """The inputs of the denoiser that depend on a prompt."""

    context: jax.Array  # [B, T, context_dim]
    pooled: jax.Array | None  # [B, P]


class Request(NamedTuple):
    """The settings of an image to make."""

    height: int  # in pixels
    width: int  # in pixels
    num_steps: int = 50  # PNDM takes one more
    guidance: float = 7.5  # 1 or less: the negative prompt does not matter


def kind_of(directory: Path) -> Kind:
    """The kind of pipeline in the model_index.json of a directory.

    Raises ConfigError if it cannot be read or its pipeline is not supported.
    """
    fields = read_fields(directory / INDEX_FILE)
    name = fields.text("_class_name")
    if name not in KINDS:
        raise fields.fail("_class_name", f"supported are {', '.join(KINDS)}")
    return KINDS[name]


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
    load_part: LoadPart = _load_part,
) -> Pipeline:
    """The pipeline of a directory of diffusers, its weights sharded over the mesh.

    `dtype` is that of weights and activations of all parts but the autoencoder, which keeps that
    of its file. Raises ConfigError, ShardingError or WeightsError; see `models.pretrained.load`.
    """
    kind = kind_of(directory)
    fields = read_fields(directory / INDEX_FILE)

    def part(folder: str, architectures: Sequence[str], dtype: str | None) -> Pretrained:
        architecture = pretrained.describe(directory / folder).architecture.name
        if architecture not in architectures:
            raise ConfigError(
                f"{directory / folder} holds a {architecture}; it must hold"
                f" {' or '.join(architectures)}"
            )
        return load_part(directory / folder, mesh, dtype=dtype)

    texts = ("CLIPTextModel", "CLIPTextModelWithProjection")
    return Pipeline(
        kind,
        tuple(part(folder, texts, dtype) for folder in kind.encoders),
        part("unet", ["UNet2DConditionModel"], dtype),
        part("vae", ["AutoencoderKL"], None),
        read_schedule(directory / "scheduler"),
        fields.flag("force_zeros_for_empty_prompt", kind.penultimate),
    )


def encode(pipeline: Pipeline, tokens: Sequence[np.ndarray]) -> Prompt:
    """The denoiser's inputs for a prompt, given as the tokens [B, T] of every tokenizer."""
    states = [
        _encode(encoder.graph, encoder.parameters, text)
        for encoder, text in zip(pipeline.encoders, tokens, strict=True)
    ]
    if not pipeline.kind.penultimate:
        return Prompt(states[0].hidden, None)
    context = jnp.concatenate([state.penultimate for state in states], axis=-1)
    return Prompt(context, states[-1].pooled)


def without_prompt(prompt: Prompt) -> Prompt:
    """Zeros in the shape of a prompt."""
    pooled = None if prompt.pooled is None else jnp.zeros_like(prompt.pooled)
    return Prompt(jnp.zeros_like(prompt.context), pooled)


def first_noise(pipeline: Pipeline, request: Request, count: int, key: jax.Array) -> jax.Array:
    """Noise [B, h, w, C] for that many images.

    Raises InputError if the size of the images does not suit the model.
    """
    reduction = pipeline.autoencoder.config.reduction
    if request.height % reduction or request.width % reduction:
        raise InputError(
            f"the image is to be {request.height} x {request.width} pixels, but both must be "
            f"multiples of {reduction}"
        )
    shape = (
        count,
        request.height // reduction,
        request.width // reduction,
        pipeline.autoencoder.config.latent_channels,
    )
    noise = jax.random.normal(key, shape, jnp.float32)
    check_latents(noise, pipeline.unet.config)
    return noise


def make_images(
    pipeline: Pipeline,
    prompt: Prompt,
    negative: Prompt,
    noise: jax.Array,
    request: Request,
    *,
    on_step: Callable[[int, int], None] = lambda done, all_steps: None,
) -> jax.Array:
    """Images [B, H, W, 3] with pixels from 0 to 1, FP32, from noise [B, h, w, C].

    `on_step` is called after each step with how many are done, and of how many.

    The prediction is negative + guidance · (positive - negative): Ho and Salimans, "Classifier-Free
    Diffusion Guidance", 2022.
    """
    planned = plan(pipeline.schedule, request.num_steps)
    ids = None
    if pipeline.unet.config.time_ids is not None:
        size = (request.height, request.width)
        ids = jnp.tile(jnp.array([*size, 0, 0, *size], jnp.float32), (len(noise), 1))
    # Every step finds its state in the same place: one program serves them all.
    place = _everywhere(pipeline.unet.parameters)
    state = jax.device_put(_begin(planned, noise), place)
    count = len(planned.steps.time)
    for i in range(count):
        made = _denoise(
            pipeline.unet.graph,
            pipeline.unet.parameters,
            Steps(*(column[i] for column in planned.steps)),
            (prompt, negative, ids),
            state,
            np.float32(request.guidance),
            request.guidance > 1,
        )
        state = jax.block_until_ready(jax.device_put(made, place))
        on_step(i + 1, count)
    return _decode(pipeline.autoencoder.graph, pipeline.autoencoder.parameters, state.sample)


_begin = jax.jit(begin)


def _everywhere(parameters: Parameters) -> Sharding:
    """Copies on all devices of the parameters."""
    sharding: Sharding = next(iter(parameters.values())).sharding
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


@partial(jax.jit, static_argnums=0)
def _encode(graph: Any, parameters: Any, tokens: jax.Array) -> Any:
    return merge(graph, parameters).encode(tokens)


@partial(jax.jit, static_argnums=0)
def _decode(graph: Any, parameters: Any, latents: jax.Array) -> jax.Array:
    autoencoder = merge(graph, parameters)
    pixels = autoencoder.decode(autoencoder.unscaled(latents))
    return jnp.clip(pixels / 2 + 0.5, 0, 1)


@partial(jax.jit, static_argnums=(0, 6))
def _denoise(
    graph: Any,
    parameters: Any,
    row: Steps,
    told: tuple[Prompt, Prompt, jax.Array | None],
    state: State,
    guidance: jax.Array,
    guided: bool,
) -> State:
    """The state after one step. `told`: prompt, negative prompt, ids of the image's size."""
    unet: UNet = merge(graph, parameters)
    prompt, negative, ids = told
    # One run of the denoiser does both prompts.
    both, both_ids = (prompt, ids)
    sample = state.sample * row.scale
    if guided:
        sample = jnp.concatenate([sample, sample])
        both, both_ids = jax.tree.map(
            lambda no, yes: jnp.concatenate([no, yes]), (negative, ids), (prompt, ids)
        )
    time = jnp.full(len(sample), row.time)
    output = unet(sample, time, both.context, pooled=both.pooled, ids=both_ids)
    if guided:
        plain, prompted = jnp.split(output, 2)
        output = plain + guidance * (prompted - plain)
    return step(state, row, output)
