"""The making of a fine-tuning job from a task, a model and settings."""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx

from launch.chat_template import (
    read_chat_template,
    read_tokenizer_config,
    reads_token_types,
    special_token,
)
from launch.config import TrainConfig
from launch.data.batches import Data
from launch.data.records import Counts, Record
from launch.data.text_data import open_text
from launch.errors import DataError, MeshError, ModelError, SettingsError
from launch.finetuning.choices import count_choices
from launch.finetuning.conversations import Writer
from launch.finetuning.media import LETTERS, Media, media_of
from launch.finetuning.packing import packed
from launch.finetuning.problems import ONE_CLASS, PROBLEMS, choose_problem, name_labels
from launch.finetuning.settings import TuningSettings
from launch.finetuning.spelling import Spelling
from launch.finetuning.starting import described_for
from launch.finetuning.task_data import open_examples, read_records
from launch.finetuning.tasks import TASKS, Subject, Task, find_labels
from launch.finetuning.text_examples import LABELS, Reading
from launch.finetuning.tuned_model import TunedModel
from launch.job import Job, row_length, with_capacity, write_sample
from launch.meshes import parse_mesh
from launch.source import tokenizer_directory
from launch.text import ByteTokenizer, Tokenizer, find_tokenizer, needed_tokenizer
from launch.training.parallelism import Parallelism
from models.parameters import Parameters, statistics
from models.pretrained import Described, describe
from models.weights.fields import Fields
from models.whisper.instructions import opening as opening_of
from models.whisper.instructions import read_instructions

_OF_NEXT_TOKENS = ("context_parallel_size", "pipeline_parallel_size")
"""Sizes of a mesh that split what becomes one loss of next tokens."""

_OF_SOUND = (LETTERS, "audio-classification")
"""Tasks of models whose vocabulary, if they have one, is of letters."""

MASKS = ("[MASK]", "<mask>")  # what tokenizers call a hidden token


class _Setup(NamedTuple):
    """A task, the model it starts from, and where that lies: what jobs are made of."""

    task: Task
    base: Described
    files: Path  # the directory of the model
    texts: Path  # that of its tokenizer
    tokenizer: Tokenizer
    media: Media
    length: int  # of a row
    records: list[list[Record]]
    choices: int  # of a question; 0 where there are none
    counts: Counts


def tuning_job(name: str, path: Path, settings: TuningSettings, config: TrainConfig) -> Job:
    """The task of this name for the model of a directory or a config.json.

    Raises DataError, ModelError and what reading models raises.
    """
    setup = _set_up(name, path, settings, config)
    task, tokenizer, media = setup.task, setup.tokenizer, setup.media
    tuned = TunedModel.of(setup.base, settings, reference=task.reference)
    subject = _subject(task, setup.base, tokenizer, media.spelling)

    def finish(parameters: Parameters, step: int) -> None:
        media.write_preprocessor(config.checkpoint_dir)
        merge = settings.merge_lora
        tuned.save(config.checkpoint_dir, step, parameters, merge=merge, source=path)

    return Job(
        model=tuned.model,
        data=_data(setup, settings, config),
        row_length=setup.length,
        texts=setup.choices or task.texts,
        unit=task.unit,
        loss_unit=PROBLEMS[subject.problem].loss_unit or f"nats per {task.loss_unit}",
        objective=task.objective(settings, subject, config.of_labels),
        trained=tuned.trained,
        first_weights=lambda model, mesh, targets: tuned.first_weights(
            path if path.is_dir() else None, config.seed, mesh, targets
        ),
        identity={"task": name, **settings.identity},
        record={"tuned": tuned.record},
        files=setup.texts,
        sample=partial(write_sample, tuned.model, tokenizer, config),
        finish=finish,
    )


def _set_up(name: str, path: Path, settings: TuningSettings, config: TrainConfig) -> _Setup:
    task, counts = TASKS[name], Counts()
    _check_mesh(name, task, config)
    _check_packing(name, task, config)
    _check_samples(name, task, config)
    files = path if path.is_dir() else path.parent
    texts = _texts(path, files, settings)
    records = [] if task.read is None else read_records(config.data, counts)
    base = _base(task, path, records, settings, config)
    _check_loss(name, task, _problem(base), config)
    media = media_of(
        base,
        files,
        records,
        seconds=settings.max_duration_in_seconds,
        skips=config.data.bad_records == "skip",
    )
    context = getattr(base.config, "max_seq_len", None)
    length = media.frames or (1 if context is None else row_length(config.seq_len, context))
    tokenizer = _tokenizer(base, texts)
    choices = count_choices(itertools.chain(*records)) if task.has_choices else 0
    return _Setup(task, base, files, texts, tokenizer, media, length, records, choices, counts)


def _data(setup: _Setup, settings: TuningSettings, config: TrainConfig) -> Data:
    """The rows of the task. Raises DataError for what they cannot be made of."""
    template = read_chat_template(setup.texts, settings.chat_template)
    end = _end(setup.base, setup.texts, setup.tokenizer)
    writer, read = Writer(setup.tokenizer, template, end), setup.task.read
    if read is None:
        return open_text(
            config.data,
            setup.tokenizer,
            vocab_size=setup.base.config.vocab_size,
            seq_len=setup.length,
            seed=config.seed,
            reader=writer.read,
        )
    reading = _reading(setup, writer, settings, config)
    return open_examples(
        setup.records,
        config.data,
        lambda record: read(record, reading),
        setup.media.finish,
        setup.counts,
        seed=config.seed,
        pack=packed if config.data.packing == "first_fit" else list,
    )


def tuned_at_depth(
    name: str, path: Path, settings: TuningSettings, config: TrainConfig, layers: int
) -> tuple[Described, Collection[str] | None]:
    """The job's model with so many blocks, and the paths of what its optimizer changes; None: all.

    Raises what `tuning_job` raises.
    """
    task = TASKS[name]
    records = [] if task.read is None else read_records(config.data, Counts())
    base = _base(task, path, records, settings, config)
    base = base._replace(config=replace(base.config, num_layers=layers))
    tuned = TunedModel.of(base, settings, reference=task.reference)
    return tuned.model, tuned.trained


def _check_mesh(name: str, task: Task, config: TrainConfig) -> None:
    """Raises MeshError for sizes that split what the task needs as a whole."""
    if task.read is None:
        return
    parallelism = config.parallelism
    if config.mesh is not None:
        parallelism = Parallelism.of(parse_mesh(config.mesh))
    for setting in _OF_NEXT_TOKENS:
        size = getattr(parallelism, setting)
        if size > 1:
            raise MeshError(
                f"--{setting}={size} supports only the next-token loss, as in --task=sft, but "
                f"{name} needs whole examples. Use other kinds of parallelism."
            )


def _check_packing(name: str, task: Task, config: TrainConfig) -> None:
    """Raises DataError for rows that a task's examples cannot be made into."""
    ways = ("padded", "first_fit") if task.packs else ("padded",)
    if task.read is not None and config.data.packing not in (None, *ways):
        raise DataError(
            f"--packing={config.data.packing} is not supported for {name}. Use "
            f"{' or '.join(f'--packing={way}' for way in ways)}, or leave it out."
        )


def _check_loss(name: str, task: Task, problem: str, config: TrainConfig) -> None:
    """Raises SettingsError for changes to a loss that the task does not have."""
    given = [f"--{key}={value:g}" for key, value in asdict(config.of_labels).items() if value]
    if given and not (task.has_labels and PROBLEMS[problem].has_labels):
        of = name if problem == ONE_CLASS else f"{name} as {problem}"
        raise SettingsError(
            f"{' '.join(given)} is for cross entropies of labels, which the loss of {of} is "
            "not. Leave it out."
        )


def _check_samples(name: str, task: Task, config: TrainConfig) -> None:
    """Raises SettingsError for samples of text by models that write none."""
    every = config.monitor.sample_every
    if every is not None and task.head != "text-generation":
        raise SettingsError(
            f"--sample_every={every} prints text that goes on from a prompt, which models for "
            f"{name} do not write. Leave it out."
        )


def _base(
    task: Task,
    path: Path,
    records: list[list[Record]],
    settings: TuningSettings,
    config: TrainConfig,
) -> Described:
    """The model with the task's head and classes, as the recipe for precision wants it."""
    names: list[str] = []
    problem = None
    if settings.problem_type is not None and task.labels != LABELS:
        of = ", ".join(name for name, other in TASKS.items() if other.labels == LABELS)
        raise SettingsError(
            f"--problem_type={settings.problem_type} is for what is classified as a whole ({of}). "
            "Leave it out."
        )
    if task.labels:
        labels = find_labels(task, [record for source in records for record in source])
        known = describe(path)
        if task.labels == LABELS:
            problem = choose_problem(labels, _problem(known), settings.problem_type)
        names = name_labels(labels, problem or ONE_CLASS, _labels(known))
    _, base = described_for(path, task, names, problem)
    base = with_capacity(base, config.expert_capacity_factor)
    return base._replace(config=config.precision.resolve().configure(base.config))


def _texts(path: Path, files: Path, settings: TuningSettings) -> Path:
    """The directory with the model's tokenizer. Raises ModelError if there are two, DataError if
    that of --tokenizer holds none."""
    if settings.tokenizer is None:
        return files
    if path.is_dir():
        raise ModelError(
            f"--model={path} defines the tokenizer, too, so --tokenizer={settings.tokenizer} "
            "cannot be given. Leave it out, or give a config.json as --model."
        )
    directory = tokenizer_directory(settings.tokenizer)
    needed_tokenizer(directory)
    return directory


def _tokenizer(base: Described, files: Path) -> Tokenizer:
    if not hasattr(base.config, "vocab_size") or base.architecture.task in _OF_SOUND:
        return ByteTokenizer()  # of models that read no text
    return find_tokenizer(files, base.config.vocab_size)


def _end(base: Described, files: Path, tokenizer: Tokenizer) -> int | None:
    """The token that ends an answer."""
    name = special_token(read_tokenizer_config(files), "eos_token")
    number = None if name is None else tokenizer.token(name)
    if number is not None or isinstance(tokenizer, ByteTokenizer):
        return number
    ends = base.fields.values.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    return ends[0] if ends and isinstance(ends[0], int) else None


def _reading(
    setup: _Setup, writer: Writer, settings: TuningSettings, config: TrainConfig
) -> Reading:
    base = setup.base
    is_whisper = base.architecture.family == "whisper"
    return Reading(
        writer,
        setup.length,
        labels=_labels(base),
        problem=_problem(base),
        pad=base.fields.integer("pad_token_id", 0),
        has_types=reads_token_types(setup.texts, base.config),
        start=getattr(base.config, "start_token", 0),
        opening=_opening(setup.files, settings) if is_whisper else (),
        sound=setup.media.sound,
        spelling=setup.media.spelling,
        choices=setup.choices,
        drops=config.data.long_documents == "drop",
        counts=setup.counts,
    )


def _labels(base: Described) -> list[str]:
    named: Mapping[str, Any] = base.fields.object("id2label", Fields({}, "config.json")).values
    return [str(named[str(number)]) for number in range(len(named)) if str(number) in named]


def _problem(base: Described) -> str:
    return base.fields.text("problem_type", None) or ONE_CLASS


def _opening(files: Path, settings: TuningSettings) -> tuple[int, ...]:
    """The tokens that a transcription begins with."""
    tokens = opening_of(read_instructions(files), settings.language)
    known = tuple(token for token in tokens if token is not None)
    if len(known) < len(tokens):
        raise DataError(
            "the model is multilingual: set --language to the language of the transcripts"
        )
    return known


def _subject(
    task: Task, base: Described, tokenizer: Tokenizer, spelling: Spelling | None
) -> Subject:
    masks = (tokenizer.token(mask) for mask in MASKS)
    mask = next((number for number in masks if number is not None), None)
    if task.head == "fill-mask" and mask is None:
        raise ModelError(
            f"the tokenizer of {base.fields.where} has no mask token ({' or '.join(MASKS)}). "
            "Choose a model that was trained for masked language modelling."
        )
    module = nnx.eval_shape(lambda: base.architecture.build(base.config))
    return Subject(
        vocab_size=getattr(base.config, "vocab_size", 0),
        mask_token=mask,
        blank=None if spelling is None else spelling.letters.blank_number,
        problem=_problem(base),
        has_statistics=bool(statistics(module)),
    )
