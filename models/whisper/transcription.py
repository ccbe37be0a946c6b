"""Transcription by Whisper: the tokens that open a text, those that are suppressed, and greedy
search. Equal to transformers without timestamps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.constraints import Constraints, Ending
from models.errors import ConfigError, GenerationError
from models.generate import generate
from models.parameters import merge
from models.sampling import Sampling
from models.weights.fields import GENERATION_FILE, Fields, read_fields
from models.whisper.config import WhisperConfig


@dataclass(frozen=True)
class Instructions:
    """The tokens of a checkpoint that have a meaning."""

    start_token: int
    end_tokens: tuple[int, ...]
    pad_token: int
    languages: Mapping[str, int] = field(default_factory=dict)  # such as "<|en|>"
    tasks: Mapping[str, int] = field(default_factory=dict)  # "transcribe" and "translate"
    no_timestamps_token: int | None = None
    # What opens a text if neither language nor task is asked for; None = the detected language.
    forced: tuple[int | None, ...] = ()
    language: str | None = None  # asked for by default
    task: str | None = None  # asked for by default
    suppressed: tuple[int, ...] = ()  # tokens that no text holds
    first_suppressed: tuple[int, ...] = ()  # tokens that begin no text


def read_instructions(directory: Path) -> Instructions:
    """Those of a checkpoint's generation_config.json, or of its config.json if there is none.

    Raises ConfigError if the file cannot be read.
    """
    file = directory / GENERATION_FILE
    fields = read_fields(file if file.is_file() else directory)
    ends = fields.values.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [fields.integer("eos_token_id")]
    return Instructions(
        start_token=fields.integer("decoder_start_token_id"),
        end_tokens=tuple(ends),
        pad_token=fields.integer("pad_token_id", ends[0]),
        languages=_numbers(fields, "lang_to_id"),
        tasks=_numbers(fields, "task_to_id"),
        no_timestamps_token=fields.integer("no_timestamps_token_id", None),
        forced=_forced(fields),
        language=fields.text("language", None),
        task=fields.text("task", None),
        suppressed=tuple(fields.list("suppress_tokens", [])),
        first_suppressed=tuple(fields.list("begin_suppress_tokens", [])),
    )


def _numbers(fields: Fields, name: str) -> Mapping[str, int]:
    return dict(fields.object(name, Fields({}, fields.where)).values)


def _forced(fields: Fields) -> tuple[int | None, ...]:
    """The tokens of `forced_decoder_ids`, a list of [place, token]; places count from 1."""
    pairs = fields.list("forced_decoder_ids", [])
    if [pair[0] for pair in pairs] != list(range(1, len(pairs) + 1)):
        raise fields.fail("forced_decoder_ids", "the places must be 1, 2, …")
    return tuple(pair[1] for pair in pairs)


def opening(
    instructions: Instructions, language: str | None = None, task: str | None = None
) -> tuple[int | None, ...]:
    """The tokens that open a text; None stands where the detected language belongs.

    A language is a token such as "<|en|>" or its code. Raises GenerationError if the model does not
    know it, or the task.
    """
    language = language or instructions.language
    task = task or instructions.task
    tokens: list[int | None] = [] if language or task else list(instructions.forced)
    if language is not None:
        tokens[:1] = [_known("language", f"<|{language.strip('<|>')}|>", instructions.languages)]
    elif instructions.languages and not tokens:
        tokens = [None]
    if task is not None:
        tokens.append(_known("task", task, instructions.tasks))
    elif language is not None and "transcribe" in instructions.tasks:
        tokens.append(instructions.tasks["transcribe"])
    last = instructions.no_timestamps_token
    if last is not None and tokens[-1:] != [last]:
        tokens.append(last)
    return (instructions.start_token, *tokens)


def _known(kind: str, name: str, known: Mapping[str, int]) -> int:
    if name not in known:
        raise GenerationError(
            f"this checkpoint does not know the {kind} {name!r}; it knows "
            f"{', '.join(sorted(known)) or 'none, so leave it out'}"
        )
    return known[name]


def transcribe(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    features: np.ndarray,
    instructions: Instructions,
    config: WhisperConfig,
    *,
    language: str | None = None,
    task: str | None = None,
    max_new_tokens: int | None = None,
) -> np.ndarray:
    """The text tokens int32 [B, n] of log-mel features [B, F, M], without those that open a text.

    Rows that end earlier are filled with the pad token. Without a language, a multilingual model
    detects it. Raises GenerationError if the model does not know language or task, or the text
    would not fit its context.
    """
    _check_tokens(instructions, config)
    prompt = prompts(graph, parameters, features, instructions, language=language, task=task)
    room = config.max_seq_len - prompt.shape[1]
    return continue_prompts(
        graph,
        parameters,
        features,
        prompt,
        instructions,
        config,
        max_new_tokens=room if max_new_tokens is None else max_new_tokens,
    )


def continue_prompts(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    features: np.ndarray,
    prompt: np.ndarray,
    instructions: Instructions,
    config: WhisperConfig,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    key: jax.Array | None = None,
) -> np.ndarray:
    """The text tokens int32 [B, n] that follow prompts [B, P]; drawn with `key` if the temperature
    is not 0."""
    _check_tokens(instructions, config)
    return generate(
        graph,
        parameters,
        prompt,
        max_new_tokens=max_new_tokens,
        context=config.max_seq_len,
        sampling=Sampling(temperature=temperature),
        constraints=Constraints(
            suppressed=instructions.suppressed, first_suppressed=instructions.first_suppressed
        ),
        ending=Ending(instructions.end_tokens, instructions.pad_token),
        key=jax.random.key(0) if key is None else key,
        inputs={"features": features},
    )


def _check_tokens(instructions: Instructions, config: WhisperConfig) -> None:
    tokens = [*instructions.suppressed, *instructions.first_suppressed, instructions.start_token]
    outside = [token for token in tokens if not 0 <= token < config.vocab_size]
    if outside:
        raise ConfigError(
            f"{GENERATION_FILE} names the tokens {outside}, but the vocabulary has "
            f"{config.vocab_size}: it belongs to another checkpoint"
        )


def prompts(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    features: np.ndarray,
    instructions: Instructions,
    *,
    language: str | None = None,
    task: str | None = None,
) -> np.ndarray:
    """The opening of every row [B, P], with the detected language where none is asked for."""
    tokens = opening(instructions, language, task)
    prompt = np.array([[token or 0 for token in tokens]] * len(features), np.int32)
    if None in tokens:
        languages = tuple(instructions.languages.values())
        start = np.full((len(features), 1), instructions.start_token, np.int32)
        detected = _detect(graph, parameters, features, start, languages)
        prompt[:, tokens.index(None)] = np.asarray(detected)
    return prompt


@partial(jax.jit, static_argnums=(0, 4))
def _detect(
    graph: nnx.GraphDef[Any],
    parameters: Mapping[str, jax.Array],
    features: jax.Array,
    start: jax.Array,
    languages: tuple[int, ...],
) -> jax.Array:
    """The language token [B] that most likely follows the start token [B, 1]."""
    known = jnp.asarray(languages)
    logits = merge(graph, parameters)(features, start)[:, 0]
    return known[jnp.argmax(logits[:, known], axis=-1)]
