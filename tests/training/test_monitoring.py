"""What people watch of a run: metrics, samples, profiles, and the table at the end."""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from launch.errors import LaunchError
from launch.monitoring import Monitor, MonitorSettings, read_metrics
from launch.simulated import DeviceTime
from launch.trainer import train
from tests.launch.programs import SOURCE, config

SETTINGS = MonitorSettings(
    tensorboard=True, sample_every=2, sample_tokens=5, profile_steps="3:4", metrics_window_size=2
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("watched")
    assert train(SOURCE, config(directory, monitor=SETTINGS)) == 0
    return directory


@pytest.mark.slow
def test_every_step_has_its_numbers(watched: Path) -> None:
    records = read_metrics(watched / "metrics.jsonl")
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert {"loss", "grad_norm", "learning_rate", "tokens_per_second"} <= steps[0].keys()
    assert [record["step"] for record in records if "held_out_loss" in record] == [4]


def test_samples_continue_the_prompt(watched: Path) -> None:
    records = read_metrics(watched / "metrics.jsonl")
    samples = {record["step"]: record["sample"] for record in records if "sample" in record}
    assert samples.keys() == {2, 4}
    assert all(text.startswith("The ") and len(text) > 4 for text in samples.values())


def events(content: bytes) -> Iterator[Event]:
    """The events of a file of TensorBoard: length, its checksum, event, its checksum, and so on."""
    while content:
        (length,) = struct.unpack_from("<Q", content)
        yield Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]


def test_tensorboard_has_what_the_metrics_have(watched: Path) -> None:
    scalars: dict[str, dict[int, float]] = {}
    for file in (watched / "tensorboard").iterdir():
        for event in events(file.read_bytes()):
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    records = read_metrics(watched / "metrics.jsonl")
    expected = {record["step"]: record["loss"] for record in records if "loss" in record}
    assert scalars["loss"] == pytest.approx(expected, rel=1e-6)
    assert scalars.keys() >= {"grad_norm", "held_out_loss", "sample/text_summary"}


def test_the_profile_is_of_the_steps_asked_for(watched: Path) -> None:
    summary = json.loads((watched / "profile" / "summary.json").read_text())
    assert summary["jit_step"]["trace_count"] == 2


def test_throughput_and_mfu_of_a_window(tmp_path: Path) -> None:
    monitor = Monitor(
        tmp_path,
        MonitorSettings(metrics_window_size=2),
        last_step=0,
        steps=3,
        tokens_per_step=1000,
        on_device=DeviceTime(0.5, 0.25),
    )
    for seconds in (10.0, 1.0, 3.0):
        monitor._speed.add(seconds)
    assert monitor._speed.values() == {
        "tokens_per_second": 500.0,
        "mfu": 0.0625,
        "device_seconds": 0.5,
        "device_tokens_per_second": 2000.0,
        "device_mfu": 0.25,
    }
    monitor.close()


@pytest.mark.slow
def test_the_summary_has_what_was_reached(
    watched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(SOURCE, config(watched, steps=6)) == 0
    table = capsys.readouterr().out
    losses = [r["loss"] for r in read_metrics(watched / "metrics.jsonl") if "loss" in r]
    assert "2 (from 4 to 6)" in table
    assert f"{losses[4]:.4f} at the start, {losses[5]:.4f} at the end" in table
    assert "nats per byte" in table
    assert re.search(r"memory per core +\d+\.\d+ MiB of 11\.\d\d GiB: ", table)


@pytest.mark.parametrize("text", ["a", "3:2", "0:1", "1:2:3", ":"])
def test_steps_to_profile_that_cannot_be_read(text: str) -> None:
    with pytest.raises(LaunchError, match=f"--profile_steps={text} cannot be read"):
        MonitorSettings(profile_steps=text)
