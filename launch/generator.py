"""Text from a run's checkpoint or from a Hugging Face directory."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from launch import checkpoints, draws
from launch.errors import CheckpointError, DataError, ModelError
from launch.finetuning.tuned_model import TunedModel
from launch.loading import load_with_progress
from launch.meshes import choose_mesh, parameter_shardings
from launch.program import say
from launch.settings import from_flags
from launch.source import TASK, from_path
from launch.text import Tokenizer, find_tokenizer
from launch.training.precision import PrecisionSettings
from models.generate import generate
from models.pretrained import Pretrained, describe_fields
from models.weights.fields import Fields
from models.weights.generation import Generation, GenerationFields, read_generation

DTYPES = ("dtype", "param_dtype")  # settings of a run that config.json lacks


class Writer(NamedTuple):
    """What text is made with."""

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
) -> None:
    """Writes the prompt and its continuation to standard output, piece by piece; several texts one
    after another. See `GenerationFields.resolve` for `given` and `otherwise`.

    Raises DataError for a prompt without tokens, GenerationError for one that is too long.
    """
    model, tokenizer, generation = writer
    wanted = generation.resolve(given or {}, otherwise)
    tokens = tokenizer.encode(prompt, marks=True)
    if not tokens.size:
        raise DataError("the prompt is empty: give at least one character to continue")
    stream = tokenizer.stream()
    is_single = wanted.sequences == 1
    if is_single:
        sys.stdout.write(prompt)
    texts = generate(
        model.graph,
        model.parameters,
        tokens[None],
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        key=draws.key(seed),
        restart=True,
        on_tokens=(lambda piece: _write(stream.feed(piece[0]))) if is_single else None,
        **wanted._asdict(),
    )
    if is_single:
        _write(stream.finish() + "\n")
        return
    for text in texts:
        stream = tokenizer.stream()
        _write(prompt + stream.feed(text) + stream.finish() + "\n")


def load_run(directory: Path, mesh_text: str | None) -> Writer:
    """The language model of a run's newest sound checkpoint, its weights on the mesh; nothing is
    changed.

    Raises what `read_run` raises, and ModelError if it is no language model.
    """
    model = read_run(directory, mesh_text)
    if model.architecture.task != TASK:
        raise ModelError(
            f"the run in {directory} is of {model.architecture.name}, made for "
            f"{model.architecture.task}; this program needs a model for {TASK}"
        )
    tokenizer = find_tokenizer(directory, model.config.vocab_size)
    return Writer(model, tokenizer, read_generation(directory, model.fields))


def read_run(directory: Path, mesh_text: str | None) -> Pretrained:
    """The model of a run's newest sound checkpoint as it is to be used, with adapters merged and
    without references.

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
            f"checkpoint {step} of {directory} was made by an earlier version of this program and "
            "does not say which architecture it is. Train it again in another --checkpoint_dir."
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
    directory: Path, mesh_text: str | None, dtype: str | None = None, *, pad: bool = False
) -> Writer:
    """The language model of a Hugging Face directory, its weights on the mesh; with `pad`, for use
    alone, on one that does not divide its sizes too.

    Raises ModelError, MeshError, DataError, ConfigError or WeightsError for what does not suit.
    """
    source = from_path(directory, dtype=dtype)
    config = source.model.config
    mesh = choose_mesh(mesh_text, config, batch_size=jax.device_count())
    say(f"{source.model.architecture.name} of {directory} on mesh {dict(mesh.shape)}")
    model = load_with_progress(directory, mesh, dtype=dtype, pad=pad)
    return Writer(model, source.tokenizer, read_generation(directory, source.model.fields))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
