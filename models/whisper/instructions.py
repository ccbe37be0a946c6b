"""The tokens of a model of speech that have a meaning: languages, tasks, and what opens a text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from models.errors import GenerationError
from models.weights.fields import GENERATION_FILE, Fields, read_fields


@dataclass(frozen=True)
class Instructions:
    """The tokens of a checkpoint that have a meaning."""

    start_token: int
    end_tokens: tuple[int, ...]
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
    """The instructions in a checkpoint's generation_config.json or, without one, config.json.

    Raises ConfigError if the file cannot be read.
    """
    file = directory / GENERATION_FILE
    fields = read_fields(file if file.is_file() else directory)
    ends = fields.values.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [fields.integer("eos_token_id")]
    return Instructions(
        start_token=fields.integer("decoder_start_token_id"),
        end_tokens=tuple(ends),
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
        raise fields.fail("forced_decoder_ids", "its positions must be 1, 2, …")
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
        tokens[:1] = [_find("language", f"<|{language.strip('<|>')}|>", instructions.languages)]
    elif instructions.languages and not tokens:
        tokens = [None]
    if task is not None:
        tokens.append(_find("task", task, instructions.tasks))
    elif language is not None and "transcribe" in instructions.tasks:
        tokens.append(instructions.tasks["transcribe"])
    last = instructions.no_timestamps_token
    if last is not None and tokens[-1:] != [last]:
        tokens.append(last)
    return (instructions.start_token, *tokens)


def _find(kind: str, name: str, known: Mapping[str, int]) -> int:
    if name not in known:
        raise GenerationError(
            f"this checkpoint does not know the {kind} {name!r}; it knows "
            f"{', '.join(sorted(known)) or 'none, so leave it out'}"
        )
    return known[name]
