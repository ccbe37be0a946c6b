"""Training runs: resumption after damage and on other meshes, refusals."""

import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch import checkpoints, trainer
from launch.checkpoints.directory import LOCK
from launch.converter import convert
from launch.errors import LaunchError
from launch.generator import generate_text, load_directory, load_run
from launch.interrupts import StopRequest
from launch.monitoring import read_metrics
from launch.program import FAILED, guarded
from launch.source import byte_level
from launch.text import ByteTokenizer
from launch.trainer import train
from launch.training import memory
from launch.training.objectives import next_tokens, text_batch
from launch.training.optimizers import OptimizerSettings, make_optimizer
from launch.training.parallelism import Parallelism
from launch.training.schedules import ScheduleSettings, make_schedule
from launch.training.step import Training, make_training
from models.sampling import Sampling
from models.weights.generation import Generation
from tests.conftest import RunPython
from tests.launch.programs import CONFIG, MODEL, SOURCE, config, losses, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 4 steps, with checkpoints 2 and 4."""
    directory = tmp_path_factory.mktemp("finished")
    assert train(SOURCE, config(directory)) == 0
    return directory


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.mark.slow
def test_a_finished_run_trains_no_further(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = losses(copy)
    assert train(SOURCE, config(copy)) == 0
    assert losses(copy) == before
    assert "held-out loss" in capsys.readouterr().out


def damage_newest(directory: Path, how: str) -> None:
    largest = max((directory / "4").rglob("*"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    if how == "truncated":
        largest.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        content[len(content) // 2] ^= 4
        largest.write_bytes(content)
    else:
        largest.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "deleted"])
def test_damaged_newest_falls_back_and_is_kept(
    finished: Path, copy: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    damage_newest(copy, how)
    damaged = {file.name for file in (copy / "4").rglob("*")}
    assert train(SOURCE, config(copy)) == 0
    messages = capfd.readouterr().err
    assert "WARNING: checkpoint 4" in messages
    assert "resuming after step 2" in messages
    assert {file.name for file in (copy / "corrupt" / "4-1").rglob("*")} == damaged
    assert losses(copy) == losses(finished)


def test_generation_leaves_damaged_checkpoints_where_they_are(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage_newest(copy, "flipped")
    generate_text(
        load_run(copy, None),
        prompt="a",
        otherwise=Generation(Sampling(temperature=0), 3),
        seed=0,
    )
    output = capfd.readouterr()
    assert output.out.startswith("a")
    assert "checkpoint 2 of" in output.err
    assert checkpoints.steps(copy) == [4, 2]


def test_a_byte_level_run_becomes_a_llama(copy: Path, tmp_path: Path) -> None:
    convert(copy, tmp_path / "llama", None)
    writer = load_directory(tmp_path / "llama", None)
    assert writer.model.config == MODEL.config
    assert writer.model.architecture.name == "LlamaForCausalLM"
    assert isinstance(writer.tokenizer, ByteTokenizer)


def test_all_damaged_is_an_error_that_deletes_nothing(copy: Path) -> None:
    for step in (2, 4):
        (copy / str(step) / "manifest.json").unlink()
    with pytest.raises(LaunchError, match=r"every checkpoint .*\[4, 2\].* is damaged; none was"):
        train(SOURCE, config(copy))
    assert sorted(path.name for path in (copy / "corrupt").iterdir()) == ["2-1", "4-1"]


def test_checkpoint_is_the_same_on_another_mesh(devices: list[jax.Device], tmp_path: Path) -> None:
    def training(data: int, model: int) -> Training:
        parallelism = Parallelism.of({"data": data, "model": model})
        schedule = make_schedule(ScheduleSettings(), steps=4)
        optimizer = make_optimizer(OptimizerSettings(), schedule, MODEL.axis_names())
        mesh, batch = parallelism.mesh(devices), text_batch(8, 32)
        return make_training(MODEL, optimizer, parallelism, mesh=mesh, batch=batch, seed=0)

    first = training(4, 2)
    tokens = np.random.default_rng(0).integers(0, 256, (8, 33)).astype(np.int32)
    batch = jax.device_put(next_tokens(tokens), first.batch_shardings)
    state, _ = first.step(first.init(), batch)
    expected = jax.tree.map(np.asarray, state)
    writer = checkpoints.CheckpointWriter(tmp_path, checkpoints.Retention(1))
    writer.save(1, checkpoints.items(state), {"position": 1})
    first.step(state, batch)  # donates what is being saved
    writer.close()
    assert checkpoints.read_record(tmp_path, 1) == {"position": 1}
    for shape in ((1, 1), (1, 2), (8, 1)):
        second = training(*shape)
        target = checkpoints.abstract(second.state, second.shardings)
        got = checkpoints.restore_state(tmp_path, 1, target, second.start)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        jax.tree.map(lambda array, leaf: array.sharding == leaf.sharding or 1 / 0, got, target)


@pytest.mark.slow
def test_oldest_checkpoints_go(tmp_path: Path) -> None:
    assert train(SOURCE, config(tmp_path, steps=5, checkpoint_every=1, keep=2)) == 0
    assert checkpoints.steps(tmp_path) == [5, 4]


@pytest.mark.slow
def test_changed_schedule_is_reported_and_followed(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(SOURCE, config(copy, steps=6)) == 0
    assert "resuming with other settings: steps was 4, now 6" in capfd.readouterr().err
    assert [step for step, _ in losses(copy)] == [1, 2, 3, 4, 5, 6]


def test_a_run_goes_on_in_another_precision(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(SOURCE, config(copy, steps=5, precision="mixed_precision", mesh="data=1")) == 0
    assert "precision was fp32, now mixed_precision" in capfd.readouterr().err
    found = losses(copy)
    assert [step for step, _ in found] == [1, 2, 3, 4, 5]
    assert found[4][1] < found[0][1]


def times(directory: Path) -> dict[Path, int]:
    """When the files of a run were changed, besides the lock."""
    files = (file for file in directory.rglob("*") if file.name != LOCK)
    return {file: file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"to another run: seed was 0, now 1.*another --checkpoint_dir"),
        ({"batch_size": 16}, "batch_size was 8, now 16"),
        ({"data": "missing.txt"}, r"cannot read --data=missing.txt: No such file"),
        ({"mesh": "data=64,model=1"}, "--mesh=data=64,model=1 needs 64 devices"),
        ({"mesh": "attention_data=2"}, "training has no mesh axis attention_data"),
        ({"mesh": "4x2"}, r"cannot read '4x2'\. Write it as"),
        ({"mesh": "data=1,model=8"}, "splits heads over model·kv_replica=8, which does not divide"),
        ({"batch_size": 6, "mesh": "data=8,model=1"}, "--batch_size=6 is not a multiple of data=8"),
        ({"mesh": "data=2", "tensor_parallel_size": 2}, "--tensor_parallel_size=2 cannot be given"),
        (
            {"tensor_parallel_size": 3},
            r"8 devices cannot be divided into groups of 3 cores \(--tensor",
        ),
        (
            {"mesh": "data=2", "gradient_accumulation_steps": 3},
            "of --gradient_accumulation_steps=3",
        ),
        (
            {"pipeline_parallel_size": 2},
            "needs at least 2 blocks, and the model has 1",
        ),
        ({"mesh": "context=2", "seq_len": 30}, "30 positions cannot be split over context=2"),
        ({"mesh": "model=2", "seq_len": 31}, "sequence parallelism cannot split 31 positions"),
        (
            {"optimizer": "lion"},
            "the state of --optimizer=adamw, which --optimizer=lion cannot use",
        ),
        (
            {"mesh": "context=3"},
            "training sequence length of 32 tokens is not a multiple of context=3",
        ),
    ],
)
def test_refusals_change_nothing(copy: Path, changes: dict[str, object], message: str) -> None:
    before = times(copy)
    with pytest.raises(LaunchError, match=message):
        train(SOURCE, config(copy, **changes))
    assert times(copy) == before


@pytest.mark.slow
def test_no_limit_of_gradients_and_smoothed_labels(tmp_path: Path) -> None:
    run = config(tmp_path, clip_norm=0.0, label_smoothing_factor=0.1, mesh="data=1", warmup_steps=0)
    assert train(SOURCE, run) == 0
    records = [record for record in read_metrics(tmp_path / "metrics.jsonl") if "nats" in record]
    assert records[-1]["nats"] < records[0]["nats"]
    assert all(record["nats"] != record["loss"] for record in records)


def test_another_model_is_refused(copy: Path) -> None:
    before = times(copy)
    with pytest.raises(LaunchError, match="to another run: dim was 16, now 32"):
        train(byte_level(replace(CONFIG, dim=32)), config(copy))
    assert times(copy) == before


def test_a_step_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_and_batch = "needs at least .*: optimizer state .*, weights .*, batch "
    rest = "needs .*: activations and gradients .*, optimizer state"
    for limit, message in ((10_000, state_and_batch), (100_000, rest)):
        monkeypatch.setattr(memory, "memory_limit", lambda device, limit=limit: limit)
        end = r".*What to change: .*: --.*--nocheck_memory starts it as"
        with pytest.raises(LaunchError, match=message + end):
            train(SOURCE, config(tmp_path, mesh="data=1"))
    assert not times(tmp_path)
    assert train(SOURCE, config(tmp_path, mesh="data=1", steps=1, check_memory=False)) == 0


@pytest.mark.slow
def test_a_run_that_is_to_stop_saves_without_evaluating_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, take_step = StopRequest(), trainer.Run._take_step

    def interrupted(run: trainer.Run) -> None:
        take_step(run)
        stop.signal_number = signal.SIGTERM if run.step == 2 else 0

    monkeypatch.setattr(trainer, "stop_requests", lambda: nullcontext(stop))
    monkeypatch.setattr(trainer.Run, "_take_step", interrupted)
    assert train(SOURCE, config(tmp_path, eval_every=2, checkpoint_every=9)) == 143
    assert checkpoints.steps(tmp_path) == [2]
    assert not [r for r in read_metrics(tmp_path / "metrics.jsonl") if "held_out_loss" in r]


@pytest.mark.slow
def test_divergence_is_an_error_and_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"gave loss .*Lower --learning_rate"):
        train(SOURCE, config(tmp_path, steps=9, learning_rate=1e30, checkpoint_every=9))
    assert checkpoints.steps(tmp_path) == []


def test_a_platform_that_does_not_start_is_one_message(run_python: RunPython) -> None:
    code = """
        import runpy, sys
        sys.argv = ["train"]
        runpy.run_module("launch.train", run_name="__main__")
    """
    process = run_python(code, {"JAX_PLATFORMS": "neuron", "NEURON_RT_NUM_CORES": "99"})
    assert process.returncode == 1
    assert process.stderr.startswith("error: Unable to initialize backend 'neuron': INVALID_ARG")
    assert process.stderr.count("\n") == 1


def test_memory_that_is_not_there_is_one_message(
    neuron_devices: list[jax.Device], capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        jax.block_until_ready(jnp.zeros(1 << 45, jnp.uint8, device=neuron_devices[0]))
        return 0

    assert guarded(main) == FAILED
    assert capsys.readouterr().err.startswith("error: RESOURCE_EXHAUSTED: ")


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        ("train", ["--num_heads=3"], "num_heads=3 is not a multiple of num_kv_heads=2"),
        ("generate", [], "no checkpoint in --checkpoint_dir="),
    ],
)
def test_a_user_error_is_one_message(
    tmp_path: Path, program: str, flags: list[str], message: str
) -> None:
    done = run(program, *flags, f"--checkpoint_dir={tmp_path / 'none'}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
