"""An encoder-decoder of texts behind an engine: the prompt is what its encoder reads."""

from collections.abc import Iterator
from contextlib import contextmanager

from launch.errors import ModelError
from launch.generator import Writer
from launch.program import say
from launch.serving.backend import Backend
from launch.serving.config import EngineConfig
from launch.serving.encoder_decoder import (
    Sources,
    cache_shape,
    length_of,
    limits_of,
    load_copies,
    make_runners,
)
from launch.serving.model_choice import ModelChoice
from launch.serving.sampling.suppressed import Suppressed
from launch.serving.scheduler.buckets import powers
from launch.serving.server import Loaded, served
from launch.text import find_tokenizer
from models.constraints import Constraints
from models.pretrained import Pretrained
from models.sampling import Sampling
from models.weights.generation import Generation, GenerationFields, read_generation

FIRST_SOURCE, FACTOR = 32, 4  # the shortest length that is compiled, and between lengths


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
    model, count = load_copies(directory, choice.mesh, config)
    tokenizer = find_tokenizer(directory, model.config.vocab_size)
    generation = read_generation(directory, model.fields)
    rules = _rules(generation)
    limits = limits_of(config, model, _sources(config, model))
    suppressed = Suppressed(rules.suppressed, rules.first_suppressed)
    runners = make_runners(model, count, limits, config, suppressed)
    writer = Writer(model, tokenizer, generation)
    return Loaded(writer, None, runners, limits, directory, opening(model, rules))


def opening(model: Pretrained, rules: Constraints) -> list[int]:
    """What every target begins with: the start token, and the first one if it is forced."""
    return [model.config.start_token, *([] if rules.forced_first is None else [rules.forced_first])]


def _rules(generation: GenerationFields) -> Constraints:
    wanted = generation.resolve({}, Generation(Sampling(), 1), start=1)
    rules = wanted.constraints
    if wanted.beams or rules.no_repeat_ngram or rules.min_new_tokens:
        say(
            f"{generation.where} asks for beams, blocked repetitions or a least length: "
            "python -m launch.run has them, answers of a server are drawn token by token"
        )
    return rules


def _sources(config: EngineConfig, model: Pretrained) -> Sources:
    longest = length_of(
        config, "max_source_len", cache_shape(model).longest, model.config.max_seq_len
    )
    lengths = powers(min(FIRST_SOURCE, longest), longest, FACTOR)
    say(f"sources of up to {list(lengths)} tokens")
    return Sources(lengths, positions=longest)
