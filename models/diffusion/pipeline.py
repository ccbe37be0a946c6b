"""Images of prompts: denoise latents step by step, decode them.

Axis names: B images, T tokens, H height and W width in pixels, h and w of the latents, C channels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from models.diffusion.adapter import ImagePrompt
from models.diffusion.blocks import check_latents
from models.diffusion.parts import Pipeline
from models.diffusion.prompts import Prompt
from models.diffusion.samplers import State, Steps, begin, noisy, plan, step
from models.diffusion.sources import Source
from models.errors import InputError
from models.parameters import Parameters, merge

_SCORE, _NEGATIVE_SCORE = 6.0, 2.5  # how beautiful images are to be, as in diffusers


class Hint(NamedTuple):
    """The image that a ControlNet sees."""

    pixels: jax.Array  # [B, H, W, C], from 0 to 1
    scale: float = 1.0  # of what the ControlNet adds


class Request(NamedTuple):
    """The settings of an image to make."""

    height: int  # in pixels
    width: int  # in pixels
    num_steps: int = 50  # PNDM takes one more
    guidance: float = 7.5  # 1 or less: the negative prompt does not matter


def first_noise(pipeline: Pipeline, request: Request, count: int, key: jax.Array) -> jax.Array:
    """Noise [B, h, w, C] for that many images.

    Raises InputError if the size of the images does not suit the model.
    """
    reduction = pipeline.autoencoder.config.reduction
    if request.height % reduction or request.width % reduction:
        raise InputError(
            f"the image size is {request.height} x {request.width} pixels, but height and width "
            f"must be multiples of {reduction}"
        )
    shape = (
        count,
        request.height // reduction,
        request.width // reduction,
        pipeline.autoencoder.config.latent_channels,
    )
    noise = jax.random.normal(key, shape, jnp.float32)
    check_latents(noise, shape[-1], pipeline.denoiser.config.multiple)
    return noise


def make_images(
    pipeline: Pipeline,
    prompt: Prompt,
    negative: Prompt,
    noise: jax.Array,
    request: Request,
    *,
    source: Source | None = None,
    hint: Hint | None = None,
    image: ImagePrompt | None = None,
    fresh: Callable[[int], jax.Array] | None = None,
    on_step: Callable[[int, int], None] = lambda done, all_steps: None,
) -> jax.Array:
    """Images [B, H, W, 3] with pixels from 0 to 1, FP32, from noise [B, h, w, C].

    With a `source`, of its image; with a `hint`, as a ControlNet sees the hint's image; with an
    `image`, as an IP-Adapter adds it to the prompt, and zeros to the negative one. `fresh`
    gives the new noise [B, h, w, C] of a step, which some samplers need. `on_step` is called after
    each step with how many are done, and of how many. Raises InputError for what the model or the
    sampler needs and is not there.

    The prediction is negative + guidance · (positive - negative): Ho and Salimans, "Classifier-Free
    Diffusion Guidance", 2022.
    """
    _check(pipeline, source, hint, image)
    start = 0 if source is None else source.start(request.num_steps)
    places = noise.shape[1] * noise.shape[2] // pipeline.denoiser.config.multiple**2
    planned = plan(pipeline.schedule.at_size(places), request.num_steps, start)
    if planned.steps.fresh.any() and fresh is None:
        raise InputError(f"{pipeline.schedule.sampler} needs fresh noise for every step")
    rows = [Steps(*(column[i] for column in planned.steps)) for i in range(len(planned.steps.time))]
    denoise = _denoiser(pipeline, prompt, negative, request, len(noise), source, hint, image)
    # Every step finds its state in the same place: one program serves them all.
    place = _everywhere(pipeline.denoiser.parameters)
    noise = jnp.asarray(noise)
    sample = planned.noise * noise
    if source is not None and not source.is_new:
        sample = _noisy(rows[0], source.latents, noise)
    state = jax.device_put(_begin(sample), place)
    for i, row in enumerate(rows):
        made = denoise(row, state)
        if fresh is not None and row.fresh:
            made = _add_noise(made, row.fresh, fresh(i))
        if source is not None and source.mask is not None and not pipeline.sees_mask:
            after = rows[i + 1] if i + 1 < len(rows) else _clean(row)
            made = _keep_latents(made, after, source.mask, source.latents, noise)
        state = jax.block_until_ready(jax.device_put(made, place))
        on_step(i + 1, len(rows))
    return _decode(pipeline.autoencoder.graph, pipeline.autoencoder.parameters, state.sample)


def _check(
    pipeline: Pipeline, source: Source | None, hint: Hint | None, image: ImagePrompt | None
) -> None:
    """Raises InputError for what the pipeline needs and is not there, or cannot use."""
    if pipeline.sees_mask and (source is None or source.mask is None):
        raise InputError("this denoiser is made for inpainting: give it an image and a mask")
    if (pipeline.control is None) != (hint is None):
        raise InputError(
            "a pipeline with a ControlNet needs an image for it, and one without a ControlNet "
            "cannot use one"
        )
    if (getattr(pipeline.denoiser.config, "image_prompts", None) is None) != (image is None):
        raise InputError(
            "a pipeline with an IP-Adapter needs an image for it, and one without cannot use one"
        )


def _denoiser(
    pipeline: Pipeline,
    prompt: Prompt,
    negative: Prompt,
    request: Request,
    count: int,
    source: Source | None,
    hint: Hint | None,
    image: ImagePrompt | None,
) -> Callable[[Steps, State], State]:
    """What makes the state after a step of that before it, for so many images."""
    model, control = pipeline.denoiser, pipeline.control
    guidance = None
    if model.config.is_told_guidance:
        guidance = jnp.full(count, request.guidance, jnp.float32)
    ids, negative_ids = _ids(pipeline, request, count)
    vectors = None if image is None else image.vectors
    blank = None if vectors is None else jnp.zeros_like(vectors)
    guided = pipeline.kind.compares and request.guidance > 1 and guidance is None
    without = Told(negative, negative_ids, guidance, blank) if guided else None
    beside = None if source is None else source.beside
    seen = None if control is None else (control.parameters, hint)
    told = (Told(prompt, ids, guidance, vectors), without, beside, seen)
    graphs = (model.graph, None if control is None else control.graph)
    share = 1.0 if image is None else image.share
    scale = np.float32(request.guidance)
    return lambda row, state: _denoise(graphs, model.parameters, row, told, share, state, scale)


def _ids(
    pipeline: Pipeline, request: Request, count: int
) -> tuple[jax.Array | None, jax.Array | None]:
    """What the denoiser is told of the image with the prompt and without it, [B, N] each."""
    if not pipeline.denoiser.config.is_told_size:
        return None, None
    size = (request.height, request.width)
    ends = ((_SCORE,), (_NEGATIVE_SCORE,)) if pipeline.wants_score else (size, size)
    with_prompt, without = (
        jnp.tile(jnp.array([*size, 0, 0, *end], jnp.float32), (count, 1)) for end in ends
    )
    return with_prompt, without


_begin, _noisy = jax.jit(begin), jax.jit(noisy)


@jax.jit
def _add_noise(state: State, deviation: jax.Array, fresh: jax.Array) -> State:
    """The state with new noise in its sample."""
    return state._replace(sample=state.sample + deviation * fresh)


@jax.jit
def _keep_latents(
    state: State, after: Steps, mask: jax.Array, latents: jax.Array, noise: jax.Array
) -> State:
    """The state with the image's latents where the mask is 0, as noisy as before the step
    `after`."""
    known = noisy(after, latents, noise)
    return state._replace(sample=jnp.where(mask > 0, state.sample, known))


def _clean(row: Steps) -> Steps:
    """The row of a step that starts without noise."""
    return row._replace(signal=np.ones_like(row.signal), noise=np.zeros_like(row.noise))


def _everywhere(parameters: Parameters) -> Sharding:
    """Copies on all devices of the parameters."""
    sharding: Sharding = next(iter(parameters.values())).sharding
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


@partial(jax.jit, static_argnums=0)
def _decode(graph: Any, parameters: Any, latents: jax.Array) -> jax.Array:
    autoencoder = merge(graph, parameters)
    pixels = autoencoder.decode(autoencoder.unscaled(latents))
    return jnp.clip(pixels / 2 + 0.5, 0, 1)


class Told(NamedTuple):
    """The inputs of the denoiser that stay the same in all steps."""

    prompt: Prompt
    ids: jax.Array | None  # [B, N]
    guidance: jax.Array | None  # [B]: of models that follow it by themselves
    image: jax.Array | None = None  # [B, dim]: the vectors of an IP-Adapter's images


@partial(jax.jit, static_argnums=0)
def _denoise(
    graphs: tuple[Any, Any],
    parameters: Any,
    row: Steps,
    told: tuple[Told, Told | None, jax.Array | None, tuple[Any, Hint] | None],
    share: jax.Array,
    state: State,
    guidance: jax.Array,
) -> State:
    """The state after one step. `graphs`: of the denoiser and of a ControlNet. `told`: with the
    prompt, without it if that matters, what the denoiser sees beside latents, and what the
    ControlNet has and sees. `share` is the factor of an IP-Adapter's image."""
    denoiser = merge(graphs[0], parameters)
    both, without, beside, controlled = told
    sample = state.sample * row.scale
    if beside is not None:
        sample = jnp.concatenate([sample, beside], axis=-1)
    if without is not None:  # one run of the denoiser does both prompts
        sample = jnp.concatenate([sample, sample])
        both = jax.tree.map(lambda no, yes: jnp.concatenate([no, yes]), without, both)
    time = jnp.full(len(sample), row.time)
    prompt = both.prompt
    conditions = {"pooled": prompt.pooled, "ids": both.ids}
    images = {} if both.image is None else {"image": both.image, "share": share}
    control = {}
    if controlled is not None:
        weights, hint = controlled
        pixels = jnp.tile(hint.pixels, (len(sample) // len(hint.pixels), 1, 1, 1))
        net = merge(graphs[1], weights)
        control["control"] = net(
            sample, time, prompt.context, pixels, scale=hint.scale, **conditions
        )
    output = denoiser(
        sample,
        time,
        prompt.context,
        seen=prompt.seen,
        guidance=both.guidance,
        **conditions,
        **control,
        **images,
    )[..., : state.sample.shape[-1]]  # without the variance that some predict
    if without is not None:
        plain, prompted = jnp.split(output, 2)
        output = plain + guidance * (prompted - plain)
    return step(state, row, output)
