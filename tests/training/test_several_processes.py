"""Runs of several processes, started by the command: they are the runs of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from launch import checkpoints
from launch.trainer import train
from launch.training.parallelism import Parallelism
from tests.conftest import PROJECT
from tests.launch.programs import MODEL_FLAGS, SOURCE, config, losses
from tests.training import mesh_job
from tests.training.task_cases import CASES, write_case
from tests.training.test_tasks import run

NEVER = 1_000_000
SCHEDULE = "constant"  # so that a run may get more steps later


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents in files of two formats, of which several share a row."""
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, rng.integers(4, 40)))) for _ in range(300)]
    folder = tmp_path_factory.mktemp("data")
    lines, table = folder / "lines.jsonl", folder / "table.parquet"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:150]))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts[150:]}), table, row_group_size=64)
    return f"{lines},{table}"


def train_alone(directory: Path, data: str, steps: int) -> None:
    """In this process, on its eight cores."""
    run = config(
        directory,
        data=data,
        steps=steps,
        checkpoint_every=NEVER,
        eval_every=NEVER,
        schedule=SCHEDULE,
    )
    assert train(SOURCE, run) == 0


def launch(directory: Path, data: str) -> subprocess.Popen[str]:
    """Two processes with four cores each, which learn text."""
    return start(
        "train",
        *MODEL_FLAGS,
        f"--schedule={SCHEDULE}",
        *(f"--{name}={NEVER}" for name in ("steps", "checkpoint_every", "eval_every")),
        f"--data={data}",
        f"--checkpoint_dir={directory}",
    )


def start(program: str, *flags: str) -> subprocess.Popen[str]:
    """A program in two processes with four cores each."""
    return start_module(f"launch.{program}", *flags)


def start_module(module: str, *flags: str, count: int = 2) -> subprocess.Popen[str]:
    """A module in several processes with eight cores together."""
    command = [sys.executable, "-m", "neuronjax.cli", "launch", f"--hosts={count}", "-m"]
    return subprocess.Popen(
        [*command, module, *flags],
        env={**os.environ, "JAX_PLATFORMS": "neuron", "NEURON_RT_NUM_CORES": str(8 // count)},
        cwd=PROJECT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def worker(launcher: int, index: int) -> int:
    """The number of a launcher's process."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if words[words.index("neuronjax.cli.worker") + 3] == str(index):
            return int(child)
    raise AssertionError(f"there is no process {index}")


@pytest.mark.slow
def test_two_processes_go_on_with_a_run_of_one_and_one_with_theirs(
    data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = 3
    train_alone(tmp_path, data, begun)
    launcher = launch(tmp_path, data)
    deadline = time.monotonic() + 180
    while len(losses(tmp_path)) == begun:
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(worker(launcher.pid, 1), signal.SIGTERM)  # to one of them alone
    output, errors = launcher.communicate(timeout=180)
    last = losses(tmp_path)[-1][0]

    assert launcher.returncode == 143, output + errors
    assert checkpoints.steps(tmp_path) == [last, begun]
    assert f"resuming after step {begun}" in output
    assert f"[0] stopped after step {last}; checkpoint {last} is saved in" in output
    ours = [line for line in output.splitlines() if line.startswith("[1]") and line != "[1] "]
    assert ours == ["[1] SIGTERM: saving after this step, within 120 seconds"]

    capfd.readouterr()
    train_alone(tmp_path, data, last + 3)
    assert f"resuming after step {last}" in capfd.readouterr().err
    train_alone(tmp_path / "uninterrupted", data, last + 3)
    assert losses(tmp_path) == losses(tmp_path / "uninterrupted")
    assert len(losses(tmp_path)) == last + 3


@pytest.mark.slow
def test_two_processes_tune_like_one_and_write_one_model(tmp_path: Path) -> None:
    case, model, steps = CASES["image-classification, vit"], tmp_path / "model", 3
    data = write_case(case, model)
    alone, both = tmp_path / "alone", tmp_path / "both"
    shared = {"parallelism": Parallelism(fully_sharded_size=8), "mesh": None}
    assert run(case, model, data, alone, steps=steps, **shared) == 0
    launcher = start(
        "finetune",
        f"--task={case.task}",
        f"--model={model}",
        f"--data={data}",
        f"--checkpoint_dir={both}",
        f"--steps={steps}",
        "--schedule=constant",
        "--learning_rate=1e-2",
        "--warmup_steps=0",
        "--batch_size=8",
        "--fully_sharded_size=8",
        *(f"--{name}={value}" for name, value in case.settings.items()),
    )
    output, errors = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, output + errors
    # XLA compiles a step differently around collectives that leave the process.
    steps_of_both, steps_of_one = (np.float32(losses(folder)) for folder in (both, alone))
    np.testing.assert_array_max_ulp(steps_of_both, steps_of_one, maxulp=2)
    written = both / f"model-{steps}"
    assert {file.name for file in written.iterdir()} == {
        file.name for file in (alone / written.name).iterdir()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "names"),
    [
        (2, list(mesh_job.MESHES)),
        (4, ["data, fully sharded, tensor, scan", "experts", "GPipe", "interleaved"]),
    ],
)
def test_processes_train_like_one_on_every_mesh(
    count: int, names: list[str], tmp_path: Path
) -> None:
    both, alone = tmp_path / "both", tmp_path / "alone"
    launcher = start_module("tests.training.mesh_job", str(both), *names, count=count)
    output, errors = launcher.communicate(timeout=1200)
    assert launcher.returncode == 0, output + errors
    for name in names:
        mesh_job.run(name, alone)
        steps_of_both, steps_of_one = (
            np.float32(losses(folder / name)) for folder in (both, alone)
        )
        np.testing.assert_array_max_ulp(steps_of_both, steps_of_one, maxulp=2)


@pytest.mark.slow
def test_an_error_of_the_first_process_ends_all(data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launcher = launch(tmp_path / "file" / "run", data)
    output, errors = launcher.communicate(timeout=180)
    assert launcher.returncode == 1, output + errors
    first, second = sorted(output.splitlines())
    assert first.startswith("[0] error: cannot write to --checkpoint_dir=")
    assert second == first.replace("[0] error: ", "[1] error: process 0 failed: ")
