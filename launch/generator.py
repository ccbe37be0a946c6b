"""Generates text from a run's checkpoint or from a Hugging Face directory."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from launch import checkpoints, draws
from launch.assistance import Assistance
from launch.errors import CheckpointError, DataError, ModelError
from launch.finetuning.tuned_model import TunedModel
from launch.loading import load_with_progress
from launch.meshes import choose_mesh, parameter_shardings
from launch.program import say
from launch.settings import from_flags
from launch.source import TASK, from_path
from launch.stops import StopFinder
from launch.text import Tokenizer, find_tokenizer
from launch.training.precision import PrecisionSettings
from models.generate import generate
from models.pretrained import Pretrained, describe_fields
from models.weights.fields import Fields
from models.weights.generation import Generation, GenerationFields, read_generation

DTYPES = ("dtype", "param_dtype")  # settings of a run that config.json lacks


class Writer(NamedTuple):
    """A language model with its tokenizer, ready to generate text."""

    model: Pretrained
    tokenizer: Tokenizer
    generation: GenerationFields


def generate_text(
    writer: Writer,
    *,
    prompt: str,
    otherwise: Generation,
    seed: int,
    given: Mapping[str, Any] | None = None,
    assistance: Assistance | None = None,
) -> None:
    """Writes the prompt and its continuation to standard output, piece by piece; several texts one
    after another. See `GenerationFields.resolve` for `given` and `otherwise`.

    Raises DataError for a prompt without tokens, GenerationError for one that is too long or for
    beams or several texts with assistance.
    """
    model, tokenizer, generation = writer
    wanted = generation.resolve(given or {}, otherwise)
    stops = generation.stop_strings(given or {})
    tokens = tokenizer.encode(prompt, marks=True)
    if not tokens.size:
        raise DataError("the prompt is empty: give at least one character to continue")
    text = _Text(tokenizer, stops)
    is_single = wanted.sequences == 1
    if is_single:
        sys.stdout.write(prompt)
    make = partial(generate, restart=True) if assistance is None else assistance.generate
    texts = make(
        model.graph,
        model.parameters,
        tokens[None],
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        key=draws.key(seed),
        on_tokens=(lambda piece: text.write(piece[0])) if is_single else None,
        **wanted._asdict(),
    )
    if is_single:
        text.finish()
        return
    for tokens in texts:
        sys.stdout.write(prompt)
        text = _Text(tokenizer, stops)
        text.write(tokens)
        text.finish()


def load_run(directory: Path, mesh_text: str | None) -> Writer:
    """The language model of a run's latest sound checkpoint, with its weights on the mesh; nothing
    on disk is changed.

    Raises what `read_run` raises, and ModelError if it is not a language model.
    """
    model = read_run(directory, mesh_text)
    if model.architecture.task != TASK:
        raise ModelError(
            f"the run in {directory} is of {model.architecture.name}, made for "
            f"{model.architecture.task}, but this program needs a model for {TASK}"
        )
    tokenizer = find_tokenizer(directory, model.config.vocab_size)
    return Writer(model, tokenizer, read_generation(directory, model.fields))


def read_run(directory: Path, mesh_text: str | None) -> Pretrained:
    """The model of a run's latest sound checkpoint, ready for use: with adapters merged and without
    references.

    Raises CheckpointError if there is none, MeshError if the mesh does not fit.
    """
    step = checkpoints.newest(directory, move_aside=False)
    if step is None:
        raise CheckpointError(
            f"no checkpoint in --checkpoint_dir={directory}. Train one with "
            f"python -m launch.train --checkpoint_dir={directory}, or give another directory."
        )
    record = checkpoints.read_record(directory, step)
    if "config_json" not in record:
        raise CheckpointError(
            f"checkpoint {step} in {directory} was made by an earlier version of this program and "
            "does not record its architecture. Train again in another --checkpoint_dir."
        )
    fields = Fields(record["config_json"], f"checkpoint {step} of {directory}")
    settings = {name: record["model"][name] for name in DTYPES if name in record["model"]}
    base = describe_fields(fields)
    tuned = TunedModel.recorded(
        base._replace(config=replace(base.config, **settings)), record.get("tuned")
    )
    architecture, config, _ = tuned.model
    _, parameters = architecture.abstract(config)
    # One sequence is made: the batch is not split, every data-parallel group does the same.
    mesh = choose_mesh(mesh_text, config, batch_size=jax.device_count())
    axes = tuned.model.axis_names()
    shardings = parameter_shardings(mesh, parameters, axes)
    target = checkpoints.abstract(parameters, shardings)
    say(f"checkpoint {step} of {directory} on mesh {dict(mesh.shape)}")
    has_average = (directory / str(step) / checkpoints.AVERAGE).is_dir()
    item = checkpoints.AVERAGE if has_average else checkpoints.PARAMETERS
    restored = checkpoints.restore(directory, step, item, target)
    precision = from_flags(PrecisionSettings, record.get("optimizer", {})).resolve()
    return tuned.merged(precision.quantized(restored, axes))


def load_directory(
    directory: Path,
    mesh_text: str | None,
    dtype: str | None = None,
    *,
    pad: bool = False,
    scan_layers: bool = False,
) -> Writer:
    """The language model of a Hugging Face directory, with its weights on the mesh; with `pad`, for
    inference only, the mesh need not divide its sizes; with `scan_layers`, for inference too, its
    blocks run as one loop.

    Raises ModelError, MeshError, DataError, ConfigError or WeightsError for what does not fit.
    """
    source = from_path(directory, dtype=dtype)
    config = source.model.config
    mesh = choose_mesh(mesh_text, config, batch_size=jax.device_count())
    say(f"{source.model.architecture.name} of {directory} on mesh {dict(mesh.shape)}")
    model = load_with_progress(directory, mesh, dtype=dtype, pad=pad, scan_layers=scan_layers)
    return Writer(model, source.tokenizer, read_generation(directory, source.model.fields))


class _Text:
    """A text on its way to standard output, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._stream, self._finder = tokenizer.stream(), StopFinder(stops)

    def write(self, tokens: np.ndarray) -> bool:
        """Writes what is complete with the next tokens [n]. True: nothing more belongs to it."""
        if self._finder.stop is None:
            sys.stdout.write(self._finder.feed(self._stream.feed(tokens)))
            sys.stdout.flush()
        return self._finder.stop is not None

    def finish(self) -> None:
        """Writes what is left, and ends the line."""
        if self._finder.stop is None:
            sys.stdout.write(self._finder.feed(self._stream.finish()))
        sys.stdout.write(self._finder.finish() + "\n")
        sys.stdout.flush()
