"""Every task through the trainer: the loss falls, files are written, interrupted runs go on."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from PIL import Image

from launch.config import TrainConfig
from launch.data.config import DataConfig
from launch.errors import CheckpointError, DataError, MeshError, ModelError, SettingsError
from launch.finetuning.adapter_files import load_adapter
from launch.finetuning.jobs import tuning_job
from launch.finetuning.settings import TuningSettings
from launch.finetuning.starting import described_for
from launch.finetuning.tasks import LETTERS, TASKS
from launch.monitoring import MonitorSettings
from launch.trainer import run_job
from launch.training.objectives import LabelLoss
from launch.training.parallelism import Parallelism
from launch.training.schedules import ScheduleSettings
from models import pretrained
from models.pretrained import describe
from tests.training.task_cases import CASES, LLAMA, Case, write_case, write_tokenizer

STEPS = 6
INTERRUPTED = {
    "sft with adapters": "stage=2",
    "image-classification, vit": "fsdp=2",
    "image-classification, resnet": "data=2",
    "ctc-speech-recognition": "data=2",
}
"""Cases that stop on this mesh and go on, on one core: with frozen weights, which are in a pipeline
at first, with weights that are gathered, and with running statistics."""

QUICK = (
    "sft",
    "dpo",
    "text-classification",
    "text-classification, several classes",
    "multiple-choice",
    "text-to-text",
    "image-classification, vit",
)
"""Cases that no other takes the place of, in `make test`."""

TOKENS = {
    "sft": 96,
    "dpo": 2 * 96,
    "orpo": 2 * 96,
    "fill-mask": 16,
    "text-to-text": 2 * 16,
    "multiple-choice": 3 * 16,
}
"""Of a row: both answers of a pair, source and target, all choices."""


def run(case: Case, path: Path, data: str, directory: Path, **changes: Any) -> int:
    settings = TuningSettings(**case.settings)
    config = TrainConfig(
        **{
            "checkpoint_dir": directory,
            "data": DataConfig(data=data, packing=case.packing),
            "mesh": "data=1",
            "batch_size": 8,
            "steps": STEPS,
            "eval_every": STEPS,
            "schedule": ScheduleSettings(schedule="constant", learning_rate=1e-2, warmup_steps=0),
            **changes,
        }
    )
    return run_job(lambda: tuning_job(case.task, path, settings, config), config)


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_every_task_has_a_case() -> None:
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_a_task_learns(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, runs = CASES[name], tmp_path / "run"
    path = tmp_path / "model"
    data = write_case(case, path)
    if name in INTERRUPTED:
        assert run(case, path, data, runs, steps=STEPS - 2, mesh=INTERRUPTED[name]) == 0
    assert run(case, path, data, runs) == 0
    rows = [row for row in metrics(runs) if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert sum(row["loss"] for row in rows[-2:]) < sum(row["loss"] for row in rows[:2])
    held_out = [row["held_out_loss"] for row in metrics(runs) if "held_out_loss" in row]
    assert len(held_out) == (2 if name in INTERRUPTED else 1)
    if name in TOKENS:
        assert f"{STEPS * 8 * TOKENS[name]:,}" in capsys.readouterr().out
    adapters = "lora_rank" in case.settings and "merge_lora" not in case.settings
    written = runs / f"{'adapter' if adapters else 'model'}-{STEPS}"
    if name == LETTERS:
        assert json.loads((written / "vocab.json").read_text()) == case.files["vocab.json"]
    if adapters:
        load_adapter(written, described_for(path, TASKS[case.task], [])[1])
    else:
        assert describe(written).architecture.task == TASKS[case.task].head


def test_epochs_are_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    films = CASES["text-classification"]
    data = write_case(films, tmp_path / "model")
    records = len((tmp_path / "model" / Path(data).name).read_text().splitlines())
    rows = records - max(1, round(records * DataConfig().held_out_fraction))
    runs = tmp_path / "run"
    assert run(films, tmp_path / "model", data, runs, num_train_epochs=1.5) == 0
    steps = math.ceil(1.5 * rows / 8)
    assert f"1.5 epochs of {rows} rows are {steps} steps of 8" in capsys.readouterr().err
    assert max(row["step"] for row in metrics(runs)) == steps
    assert (runs / f"model-{steps}").is_dir()


@pytest.mark.slow
def test_what_has_no_adapter_keeps_every_bit_of_the_directory(tmp_path: Path) -> None:
    """A classifier of a masked language model: encoder as it was, adapters merged, head new."""
    films = CASES["text-classification"]
    path = tmp_path / "model"
    data = write_case(films, path)
    settings = {"lora_rank": 2, "target_modules": "query", "merge_lora": True}
    run(Case(films.task, films.config, settings=settings), path, data, tmp_path / "run")
    first = pretrained.load(path).parameters
    tuned = pretrained.load(tmp_path / "run" / f"model-{STEPS}").parameters
    kept = {path for path in tuned if path.startswith(("blocks.", "embeddings."))}
    changed = {path for path in kept if not np.array_equal(tuned[path], first[path])}
    assert changed == {"blocks.0.attention.query.kernel"}
    other = Case(films.task, films.config, settings=settings | {"lora_rank": 4})
    with pytest.raises(CheckpointError, match="to another run: lora_rank was 2, now 4"):
        run(other, path, data, tmp_path / "run")


@pytest.mark.parametrize(
    ("task", "settings", "error", "message"),
    [
        ("image-classification", {}, ModelError, "LlamaForCausalLM, whose family has no model for"),
        ("sft", {"lora_rank": 2, "target_modules": "query"}, ModelError, "no linear layer called"),
        ("sft", {"chat_template": "other"}, DataError, "other is neither a file"),
        ("sft", {}, DataError, "line 1: a conversation needs a chat template"),
        ("dpo", {}, DataError, "line 1: no field 'chosen'"),
        ("orpo", {"mesh": "context=2"}, MeshError, "next-token loss.*orpo needs whole examples"),
        (
            "dpo",
            {"parallelism": Parallelism(pipeline_parallel_size=2)},
            MeshError,
            "--pipeline_parallel_size=2 supports only the next-token loss",
        ),
        (
            "text-classification",
            {"monitor": MonitorSettings(sample_every=1)},
            SettingsError,
            "--sample_every=1 prints text .* which models for text-classification do not write",
        ),
        (
            "sft",
            {"tokenizer": "elsewhere"},
            ModelError,
            "defines the tokenizer, too, so --tokenizer=elsewhere cannot be given",
        ),
        ("dpo", {"packing": "first_fit"}, DataError, "first_fit is not supported for dpo"),
        (
            "orpo",
            {"of_labels": LabelLoss(z_loss_coef=0.1)},
            SettingsError,
            "--z_loss_coef=0.1 is for cross entropies of labels, which the loss of orpo is not",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(
    tmp_path: Path,
    task: str,
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    path = tmp_path / "model"
    data = write_case(CASES["sft"], path)
    given = dict(settings)
    packing = given.pop("packing", None)
    changes: dict[str, Any] = {
        name: given.pop(name)
        for name in ("mesh", "parallelism", "of_labels", "monitor")
        if name in given
    }
    if "parallelism" in changes:
        changes["mesh"] = None
    with pytest.raises(error, match=message):
        run(
            Case(task, LLAMA, settings=given, packing=packing),
            path,
            data,
            tmp_path / "run",
            **changes,
        )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_tokenizer_for_random_weights(tmp_path: Path) -> None:
    """Words instead of bytes, and their files in the run directory."""
    talks = CASES["sft"]
    data, words = write_case(talks, tmp_path / "model"), tmp_path / "words"
    words.mkdir()
    write_tokenizer(words)
    records = [{"prompt": "the cat ", "completion": "sat on a mat"}] * 8
    Path(data).write_text("".join(json.dumps(record) + "\n" for record in records))
    config = TrainConfig(checkpoint_dir=tmp_path / "run", data=DataConfig(data=data))
    settings = TuningSettings(tokenizer=str(words))
    job = tuning_job("sft", tmp_path / "model" / "config.json", settings, config)
    row = next(iter(job.data.rows))
    texts = tokenizers.Tokenizer.from_file(str(words / "tokenizer.json"))
    assert texts.decode(row["targets"][row["weights"] > 0].tolist()).startswith("sat on a mat")
    assert job.files == words
    settings = TuningSettings(tokenizer=str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"--tokenizer=.*missing is neither a directory nor a file"):
        tuning_job("sft", tmp_path / "model" / "config.json", settings, config)


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    """A ResNet takes images of any size, but a batch has one."""
    case, path = CASES["image-classification, resnet"], tmp_path / "model"
    write_case(case, path)
    for number, size in enumerate([(9, 8), (9, 8), (8, 12)]):
        folder = tmp_path / "images" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(folder / f"{number}.png")
    data = str(tmp_path / "images")
    with pytest.raises(DataError, match=r"several sizes, such as 8x9 \(.*\) and 12x8 \(.*\), and"):
        run(case, path, data, tmp_path / "run")
    sized = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    (path / "preprocessor_config.json").write_text(json.dumps(sized))
    config = TrainConfig(checkpoint_dir=tmp_path / "run", data=DataConfig(data=data))
    row = tuning_job(case.task, path, TuningSettings(), config).data.rows[0]
    assert row["pixels"].shape == (8, 8, 3)


def test_blocks_whose_biases_lie_outside_of_them_are_not_stacked(tmp_path: Path) -> None:
    vit = CASES["image-classification, vit"]
    own_biases = {"use_relative_position_bias": True, "layer_scale_init_value": 0.1}
    config = {
        **vit.config,
        "architectures": ["BeitForImageClassification"],
        "model_type": "beit",
        **own_biases,
    }
    beit, path = replace(vit, config=config), tmp_path / "model"
    data = write_case(beit, path)
    with pytest.raises(ModelError, match="--scan_layers and pipelines need blocks that are alike"):
        run(beit, path, data, tmp_path / "run", parallelism=Parallelism(scan_layers=True))
