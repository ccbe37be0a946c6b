"""An encoder-decoder behind an engine: the prompt is what its encoder reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax
from jax.sharding import Mesh

from launch.errors import ModelError
from launch.generator import Writer
from launch.loading import load_with_progress
from launch.meshes import choose_mesh
from launch.program import say
from launch.serving.backend import Backend
from launch.serving.config import CACHE_DTYPES, EngineConfig
from launch.serving.copies import copies, split_mesh
from launch.serving.errors import ServingError
from launch.serving.model_choice import ModelChoice
from launch.serving.runner.runner import Runner
from launch.serving.runner.sizes import block_bytes, choose_limits
from launch.serving.scheduler.buckets import powers
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.server import Loaded, check_clock, say_limits, served, warm_up
from launch.text import find_tokenizer
from models.layers.encoder_decoder import CacheShape, EncoderDecoder
from models.parameters import merge
from models.pretrained import Pretrained, describe
from models.sampling import Sampling
from models.weights.generation import Generation, GenerationFields, read_generation

PREFILL_BUCKETS = "8,64"  # tokens: prompts are openings, or texts that gave their blocks back
FIRST_SOURCE, FACTOR = 32, 4  # the shortest length that is compiled, and between lengths
UNSUITED = (
    "speculative_config",
    "disaggregated_prefill",
    "enable_lora",
    "lora_modules",
)
"""Settings that need a decoder alone."""


@dataclass(frozen=True)
class Target:
    """What the sizes of a cache depend on: the decoder's side of a config."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    max_seq_len: int
    boundaries: tuple[int, ...] = ()

    @classmethod
    def of(cls, shape: CacheShape, length: int) -> "Target":
        """For texts of up to `length` tokens."""
        return cls(shape.layers, shape.heads, shape.head_dim, shape.dtype, length)

    def window(self, layer: int) -> None:
        """Every layer sees the whole text."""


@contextmanager
def text_to_text_model(choice: ModelChoice) -> Iterator[Backend]:
    """An encoder-decoder behind an engine."""
    with served(load(choice), choice) as backend:
        yield backend


def load(choice: ModelChoice) -> Loaded:
    """The model of a directory, with what it needs to answer compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    directory, config = choice.model, choice.engine
    if directory is None:
        raise ModelError("an encoder-decoder is served from its directory: give --model")
    check(config)
    check_clock(config)
    mesh_text, count = split_mesh(choice.mesh)
    described = describe(directory)
    tokenizer = find_tokenizer(directory, described.config.vocab_size)
    mesh = choose_mesh(mesh_text, described.config, batch_size=jax.device_count())
    say(f"{described.architecture.name} of {directory} on mesh {dict(mesh.shape)}")
    model = load_with_progress(directory, mesh)
    generation = read_generation(directory, model.fields)
    limits = _limits(config, model, mesh)
    runners = [
        Runner(
            model.graph,
            parameters,
            own_mesh,
            limits,
            vocab_size=model.config.vocab_size,
            cache_dtype=CACHE_DTYPES[config.kv_cache_dtype],
            timed=config.clock == "device",
        )
        for own_mesh, parameters in copies(model.parameters, count)
    ]
    warm_up(runners, config)
    writer = Writer(model, tokenizer, generation)
    return Loaded(writer, None, {}, runners, limits, directory, opening(model, generation))


def check(config: EngineConfig) -> None:
    """Raises ServingError for settings that need a decoder alone."""
    given = [name for name in UNSUITED if getattr(config, name)]
    for name in ("decode_context_parallel_size", "attention_data_parallel_size"):
        if getattr(config, name) > 1:
            given.append(name)
    if given:
        raise ServingError(
            f"--{given[0]} does not go with an encoder-decoder: leave it out, or serve a decoder"
        )


def opening(model: Pretrained, generation: GenerationFields) -> list[int]:
    """What every target begins with: the start token, and the first one if it is forced."""
    wanted = generation.resolve({}, Generation(Sampling(), 1), start=1)
    rules = wanted.constraints
    if wanted.beams or rules.no_repeat_ngram or rules.min_new_tokens:
        say(
            f"{generation.where} asks for beams, blocked repetitions or a least length: "
            "python -m launch.run has them, answers of a server are drawn token by token"
        )
    return [model.config.start_token, *([] if rules.forced_first is None else [rules.forced_first])]


def _limits(config: EngineConfig, model: Pretrained, mesh: Mesh) -> SchedulerLimits:
    decoder: EncoderDecoder = merge(model.graph, model.parameters)
    shape = decoder.cache_shape
    usual = model.config.max_seq_len
    longest_source = _length(config, "max_source_len", shape.longest, usual)
    context = _length(config, "max_model_len", shape.longest, usual)
    target = Target.of(shape, context)
    settings = replace(config, prefill_buckets=config.prefill_buckets or PREFILL_BUCKETS)
    places = config.max_num_seqs + 1
    heads = shape.heads // mesh.shape.get("model", 1)
    width = 2 * shape.layers * heads * shape.head_dim * jax.numpy.dtype(shape.dtype).itemsize
    dtype = CACHE_DTYPES[config.kv_cache_dtype]
    limits = choose_limits(settings, target, mesh, dtype, reserved=places * longest_source * width)
    limits = replace(
        limits, sources=powers(min(FIRST_SOURCE, longest_source), longest_source, FACTOR)
    )
    say_limits(limits, block_bytes(settings, target, mesh, dtype))
    say(f"sources of up to {list(limits.sources)} tokens")
    return limits


def _length(config: EngineConfig, name: str, longest: int | None, usual: int) -> int:
    """Of texts, as the settings or the model say."""
    length: int = getattr(config, name) or usual
    if longest is not None and length > longest:
        raise ServingError(f"--{name}={length}: this model's texts have {longest} tokens at most")
    return length
