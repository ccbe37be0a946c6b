"""Transcription by Whisper: the tokens that open a text, those that are suppressed, and greedy
search. Equal to transformers without timestamps."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.constraints import Constraints, Ending
from models.errors import ConfigError
from models.generate import generate
from models.parameters import merge
from models.sampling import Sampling
from models.weights.fields import GENERATION_FILE
from models.whisper.config import WhisperConfig
from models.whisper.instructions import Instructions, opening


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
            f"{GENERATION_FILE} has the token IDs {outside}, but the vocabulary size is "
            f"{config.vocab_size}. It belongs to another checkpoint."
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
