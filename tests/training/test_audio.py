"""Classes of sounds: what rows hold, what is refused, and a network that learns spoken vowels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.config import TrainConfig
from launch.data.config import DataConfig
from launch.data.records import Record
from launch.errors import LaunchError
from launch.finetuning.jobs import tuning_job
from launch.finetuning.settings import TuningSettings
from launch.job import Job
from launch.tasks.table import run_checkpoint
from launch.tasks.task import Request
from launch.training.schedules import ScheduleSettings
from models.pretrained import load
from models.sampling import Sampling
from models.weights.generation import Generation
from tests.training.task_cases import AST, CASES, write_case
from tests.training.test_data_sources import source_items
from tests.training.test_letters import write_samples, write_wave
from tests.training.test_tasks import metrics, run

TASK = "audio-classification"
WAVES, SPECTROGRAMS = f"{TASK}, wav2vec2", f"{TASK}, ast"
SMALL = {
    **AST,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "patch_size": 8,
    "frequency_stride": 8,
    "time_stride": 8,
    "num_mel_bins": 64,
    "max_length": 40,
}


def job(model: Path, data: Path, **settings: Any) -> Job:
    config = TrainConfig(
        checkpoint_dir=model.parent / "run",
        data=DataConfig(data=str(data), held_out_fraction=0.0),
        batch_size=2,
    )
    return tuning_job(TASK, model, TuningSettings(**settings), config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a folder of sounds for each class."""
    for label, lengths in {"no": (500, 900), "yes": (700, 9000)}.items():
        (tmp_path / "sounds" / label).mkdir(parents=True)
        for length in lengths:
            write_wave(tmp_path / "sounds" / label / f"{length}.wav", length)
    return tmp_path / "sounds"


def test_a_folder_of_sounds_is_a_class(folder: Path) -> None:
    write_case(CASES[WAVES], folder.parent / "model")
    found = job(folder.parent / "model", folder, max_duration_in_seconds=0.1)
    assert found.model.fields.values["id2label"] == {"0": "no", "1": "yes"}
    assert found.data.counts.dropped == 1
    rows = sorted((found.data.rows[i] for i in range(3)), key=lambda row: int(row["frames"]))
    assert [row["sound"].shape for row in rows] == [(900,)] * 3
    assert [int(row["labels"]) for row in rows] == [0, 1, 0]
    assert [int(row["frames"]) for row in rows] == [82, 115, 149]  # as convolutions leave them
    assert not rows[0]["sound"][500:].any()


def test_spectrograms_have_the_size_that_the_config_says(folder: Path) -> None:
    write_case(CASES[SPECTROGRAMS], folder.parent / "model")
    found = job(folder.parent / "model", folder)
    assert {found.data.rows[i]["sound"].shape for i in range(4)} == {(8, 8)}
    assert "frames" not in found.data.rows[0]


def test_a_sound_that_is_too_short_is_refused(folder: Path) -> None:
    write_case(CASES[SPECTROGRAMS], folder.parent / "model")
    write_wave(folder / "yes" / "click.wav", 300)
    with pytest.raises(LaunchError, match=r"click.wav: the sound has 300 samples, .* least 400"):
        job(folder.parent / "model", folder)


@pytest.mark.slow
def test_vowels_are_bundled() -> None:
    records = [item for item in source_items(Path("vowels")) if isinstance(item, Record)]
    assert len(records) == 1000
    names, counts = np.unique([record.fields["label"] for record in records], return_counts=True)
    assert len(names) == 10
    assert set(counts) == {100}
    sound = records[0].fields["audio"]
    assert 0.2 * 16_000 <= len(sound["array"]) <= 0.4 * 16_000
    assert 0.2 < np.abs(sound["array"]).max() <= 1


@pytest.mark.slow
def test_a_small_network_learns_spoken_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a config.json alone; what it learnt runs as any checkpoint does."""
    model = tmp_path / "config.json"
    model.write_text(json.dumps(SMALL))
    schedule = ScheduleSettings(learning_rate=3e-3, warmup_steps=20)
    steps: dict[str, Any] = {"steps": 600, "eval_every": 600, "batch_size": 32}
    runs = tmp_path / "run"
    assert run(CASES[SPECTROGRAMS], model, "vowels", runs, schedule=schedule, **steps) == 0
    [held_out] = [row for row in metrics(runs) if "held_out_loss" in row]
    assert held_out["held_out_accuracy"] > 0.9

    learnt = runs / "model-600"
    assert len(load(learnt).fields.values["id2label"]) == 10
    sound = next(
        item.fields
        for item in source_items(Path("vowels"))
        if isinstance(item, Record) and item.fields["label"] == "heed"
    )
    file = tmp_path / "heed.wav"
    write_samples(file, (sound["audio"]["array"] * (2**15 - 1)).astype("<i2"))
    capsys.readouterr()
    generation = Generation(Sampling(temperature=0.0), 1)
    run_checkpoint(Request(learnt, str(file), None, None, generation, seed=0), None)
    assert capsys.readouterr().out.startswith("heed\t")
