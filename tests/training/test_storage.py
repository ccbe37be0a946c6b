"""The run directory: its lock, its disk, and which checkpoints stay."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from launch import checkpoints
from launch.checkpoints import CheckpointWriter, Retention, RunLock, run_directory
from launch.checkpoints.retention import delete
from launch.errors import LaunchError
from launch.monitoring.metrics_file import MetricsFile

ARRAYS = {"parameters": {"a": jnp.arange(4096.0)}}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[CheckpointWriter]:
    writer = CheckpointWriter(tmp_path, Retention(2))
    yield writer
    writer.close()


@pytest.mark.parametrize(
    ("newest", "every", "steps", "surplus"),
    [
        (2, None, [1, 2, 3], [1]),
        (5, None, [1, 2, 3], []),
        (1, 2, [1, 2, 3, 4, 5], [1, 3]),
        (2, 100, [100, 150, 200, 250, 300], [150]),
        (1, None, [], []),
    ],
)
def test_surplus(newest: int, every: int | None, steps: list[int], surplus: list[int]) -> None:
    assert Retention(newest, every).surplus(reversed(steps)) == surplus


def test_saving_keeps_the_newest_and_every_third(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, Retention(1, every=3))
    for step in range(1, 6):
        writer.save(step, ARRAYS, {"step": step})
    writer.close()
    assert checkpoints.steps(tmp_path) == [5, 3]
    assert list(checkpoints.sound_steps(tmp_path, move_aside=False)) == [5, 3]
    assert checkpoints.read_record(tmp_path, 3) == {"step": 3}


def test_what_a_kill_left_is_removed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: CheckpointWriter
) -> None:
    writer.save(1, ARRAYS, {})
    writer.wait()
    monkeypatch.setattr(shutil, "rmtree", lambda path: None)  # killed after the rename
    delete(tmp_path, [1])
    monkeypatch.undo()
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    assert checkpoints.steps(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2
    CheckpointWriter(tmp_path, Retention(1)).close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_space_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: CheckpointWriter
) -> None:
    writer.save(1, ARRAYS, {})
    writer.wait()
    usage = shutil.disk_usage(tmp_path)._replace(free=16_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(LaunchError, match=r"it needs 3\d,\d* bytes, but only 16,000 are free"):
        writer.save(2, ARRAYS, {})
    assert list(checkpoints.sound_steps(tmp_path, move_aside=False)) == [1]


def test_metrics_on_a_full_disk_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "metrics.new").symlink_to("/dev/full")
    metrics = MetricsFile(tmp_path / "metrics.jsonl", last_step=0)
    with pytest.raises(LaunchError, match=r"metrics\.jsonl: No space left on device\. Checkp"):
        metrics.write(step=1)
    metrics.close()


def test_a_second_run_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with (
        RunLock(tmp_path / "run"),
        pytest.raises(LaunchError, match=r"is in use by process \d+ on [^ ]+\. Wait until"),
    ):
        RunLock(tmp_path / "run")
    RunLock(tmp_path / "run").close()


@pytest.mark.parametrize("directory", ["/proc", "/proc/none", "/dev/null", "/dev/null/run"])
def test_directories_that_cannot_be_written(directory: str) -> None:
    with pytest.raises(LaunchError, match=f"cannot write to --checkpoint_dir={directory}: .* Give"):
        RunLock(Path(directory))


@pytest.mark.parametrize(
    ("text", "path"),
    [("runs/a", "runs/a"), ("/runs/a", "/runs/a"), ("file:///runs/a", "/runs/a")],
)
def test_addresses_of_run_directories(text: str, path: str) -> None:
    assert run_directory(text) == Path(path)


@pytest.mark.parametrize("text", ["gs://bucket/run", "s3://bucket/run", "file://host/run"])
def test_object_stores_are_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=f"--checkpoint_dir={text} is an object store"):
        run_directory(text)


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    target = jax.eval_shape(lambda: jnp.zeros(2))
    with pytest.raises(LaunchError, match=r"there are no parameters in .*/7/parameters"):
        checkpoints.restore(tmp_path, 7, checkpoints.PARAMETERS, {"a": target})
