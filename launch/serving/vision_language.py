"""A language model that sees images behind an engine: those of a conversation lie beside the
pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from launch.errors import ModelError
from launch.generator import Writer
from launch.images_in_text import ImageReading
from launch.program import say
from launch.serving.backend import Backend
from launch.serving.config import EngineConfig
from launch.serving.encoder_decoder import load_copies, make_runners, mesh_of
from launch.serving.errors import ServingError
from launch.serving.model_choice import ModelChoice
from launch.serving.runner.sizes import block_bytes, cache_dtype, choose_limits
from launch.serving.sampling.suppressed import NONE_SUPPRESSED
from launch.serving.scheduler.buckets import powers
from launch.serving.scheduler.limits import SchedulerLimits, Units
from launch.serving.server import Loaded, say_limits, served
from launch.text import find_tokenizer
from models.pretrained import Pretrained
from models.vision_language.config import VisionLanguageConfig
from models.weights.generation import read_generation


@contextmanager
def vision_language_model(choice: ModelChoice) -> Iterator[Backend]:
    """A language model that sees images behind an engine."""
    with served(load(choice), choice) as backend:
        yield backend


def load(choice: ModelChoice) -> Loaded:
    """The model of a directory, with what it needs to answer compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    directory, config = choice.model, choice.engine
    if directory is None:
        raise ModelError("a model that sees images is served from its directory: give --model")
    # Layers with windows share the table of the others, as images lie in it whole.
    config = replace(config, disable_hybrid_kv_cache_manager=True)
    model, count = load_copies(directory, choice.mesh, config)
    tokenizer = find_tokenizer(directory, model.config.vocab_size)
    reading = ImageReading.of(directory, model.architecture.model_type, model.config)
    limits = _limits_of(config, model, mesh_of(model))
    runners = make_runners(model, count, limits, config, NONE_SUPPRESSED)
    writer = Writer(model, tokenizer, read_generation(directory, model.fields))
    return Loaded(writer, None, runners, limits, Path(directory), reading=reading)


def _limits_of(config: EngineConfig, model: Pretrained, mesh: Mesh) -> SchedulerLimits:
    """What there is room for. Raises ServingError for settings that contradict each other."""
    see: VisionLanguageConfig = model.config
    dtype = cache_dtype(config, model.parameters)
    places = config.max_num_seqs + 1
    reserved = places * config.max_images * see.image_tokens * see.text.dim
    itemsize = np.dtype(see.dtype).itemsize
    limits = choose_limits(config, see.decoder, mesh, dtype, reserved=reserved * itemsize)
    if see.pooled and limits.buckets.chunk < see.image_tokens:
        raise ServingError(
            f"an image is {see.image_tokens} tokens that one step must compute, but a step takes "
            f"{limits.buckets.chunk} tokens of a prompt at most: raise --max_num_batched_tokens or "
            "the largest of --prefill_buckets"
        )
    say_limits(limits, block_bytes(config, see.decoder, mesh, dtype))
    say(f"images: up to {config.max_images} of {see.image_tokens} tokens in a conversation")
    side = see.vision.image_size
    return replace(
        limits,
        sources=tuple(side * count for count in powers(1, config.max_images, 2)),
        features=side * see.vision.num_channels,
        needs_source=False,
        units=Units(see.vocab_size, see.image_tokens) if see.pooled else None,
    )
