"""Encoder-decoders behind an engine: what their encoders read lies beside the pages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from launch.loading import load_with_progress
from launch.meshes import choose_mesh
from launch.program import say
from launch.serving.config import CACHE_DTYPES, EngineConfig
from launch.serving.copies import copies, split_mesh
from launch.serving.errors import ServingError
from launch.serving.runner.runner import Runner
from launch.serving.runner.sizes import block_bytes, choose_limits
from launch.serving.sampling.suppressed import Suppressed
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.server import say_limits, warm_up
from models.layers.encoder_decoder import CacheShape, EncoderDecoder
from models.parameters import merge
from models.pretrained import Pretrained, describe

PREFILL_BUCKETS = "8,64"  # tokens: prompts are openings, or texts that gave their blocks back
UNSUITED = (
    "speculative_config",
    "disaggregated_prefill",
    "enable_lora",
    "lora_modules",
)
"""Settings that need a decoder alone."""


class Sources(NamedTuple):
    """The sizes of the sources that an encoder reads."""

    lengths: Sequence[int]  # that are compiled, ascending
    positions: int  # that the encoder makes of the longest
    features: int = 0  # numbers of each position; 0 = it is a token


@dataclass(frozen=True)
class Target:
    """The fields of a config that the sizes of the decoder's cache depend on."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    max_seq_len: int
    boundaries: tuple[int, ...] = ()

    @classmethod
    def of(cls, shape: CacheShape, length: int) -> "Target":
        """The target for texts of up to `length` tokens."""
        return cls(shape.layers, shape.heads, shape.head_dim, shape.dtype, length)

    def window(self, layer: int) -> None:
        """Every layer sees the whole text."""


def load_copies(
    directory: Path, mesh_text: str, config: EngineConfig, dtype: str | None = None
) -> tuple[Pretrained, int]:
    """The model of a directory on the mesh of one copy, and how many copies there are to be.

    Raises LaunchError or ModelsError for what does not suit.
    """
    _check(config)
    mesh_text, count = split_mesh(mesh_text)
    described = describe(directory)
    mesh = choose_mesh(mesh_text, described.config, batch_size=jax.device_count())
    say(f"{described.architecture.name} of {directory} on mesh {dict(mesh.shape)}")
    return load_with_progress(directory, mesh, dtype=dtype, pad=True), count


def make_runners(
    model: Pretrained,
    count: int,
    limits: SchedulerLimits,
    config: EngineConfig,
    suppressed: Suppressed,
) -> list[Runner]:
    """A runner for each copy of the model, with what it needs to answer compiled."""
    runners = [
        Runner(
            model.graph,
            parameters,
            mesh,
            limits,
            vocab_size=model.config.vocab_size,
            cache_dtype=CACHE_DTYPES[config.kv_cache_dtype],
            suppressed=suppressed,
            timed=config.clock == "device",
        )
        for mesh, parameters in copies(model.parameters, count)
    ]
    warm_up(runners, config)
    return runners


def limits_of(config: EngineConfig, model: Pretrained, sources: Sources) -> SchedulerLimits:
    """What there is room for. Raises ServingError for settings that contradict each other."""
    shape = cache_shape(model)
    mesh = mesh_of(model)
    context = length_of(config, "max_model_len", shape.longest, model.config.max_seq_len)
    target = Target.of(shape, context)
    settings = replace(config, prefill_buckets=config.prefill_buckets or PREFILL_BUCKETS)
    places = config.max_num_seqs + 1
    heads = shape.heads // mesh.shape.get("model", 1)
    width = 2 * shape.layers * heads * shape.head_dim * jax.numpy.dtype(shape.dtype).itemsize
    dtype = CACHE_DTYPES[config.kv_cache_dtype]
    reserved = places * sources.positions * width
    limits = choose_limits(settings, target, mesh, dtype, reserved=reserved)
    say_limits(limits, block_bytes(settings, target, mesh, dtype))
    return replace(limits, sources=tuple(sources.lengths), features=sources.features)


def cache_shape(model: Pretrained) -> CacheShape:
    """The shape of the decoder's keys and values."""
    decoder: EncoderDecoder = merge(model.graph, model.parameters)
    return decoder.cache_shape


def mesh_of(model: Pretrained) -> Mesh:
    """The mesh that the model's weights are on."""
    mesh: Mesh = next(iter(model.parameters.values())).sharding.mesh
    return mesh


def length_of(config: EngineConfig, name: str, longest: int | None, usual: int) -> int:
    """The length of texts in tokens, as settings or model say. Raises ServingError beyond
    `longest`."""
    length: int = getattr(config, name) or usual
    if longest is not None and length > longest:
        raise ServingError(f"--{name}={length}: this model's texts have {longest} tokens at most")
    return length


def _check(config: EngineConfig) -> None:
    """Raises ServingError for settings that need a decoder alone."""
    given = [name for name in UNSUITED if getattr(config, name)]
    for name in ("decode_context_parallel_size", "attention_data_parallel_size"):
        if getattr(config, name) > 1:
            given.append(name)
    if given:
        raise ServingError(
            f"--{given[0]} does not go with an encoder-decoder: leave it out, or serve a decoder"
        )
