"""Metrics and manifests: what a kill or a flipped bit does to them."""

from pathlib import Path

import pytest

from launch.checkpoints.manifest import find_damage, write_manifest
from launch.monitoring.metrics_file import MetricsFile, read_metrics


def test_resuming_drops_later_records_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path, last_step=0)
    for step in (1, 2, 3):
        metrics.write(step=step, loss=0.1 * step)
    metrics.close()
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]
    metrics = MetricsFile(path, last_step=2)
    metrics.write(step=3, loss=7.0)
    metrics.close()
    assert read_metrics(path) == [
        {"step": 1, "loss": 0.1},
        {"step": 2, "loss": 0.2},
        {"step": 3, "loss": 7.0},
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "x").write_bytes(bytes(range(100)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "y").write_bytes(b"yes")
    write_manifest(tmp_path, ("a", "b"))
    return tmp_path


def test_untouched_files_have_no_damage(directory: Path) -> None:
    assert find_damage(directory, ("a",)) is None


@pytest.mark.parametrize("offset", range(0, 100, 7))
def test_every_flipped_bit_is_found(directory: Path, offset: int) -> None:
    content = bytearray(range(100))
    content[offset] ^= 1 << (offset % 8)
    (directory / "a/deep/x").write_bytes(content)
    assert find_damage(directory, ("a",)) == "the content of a/deep/x does not match its checksum"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b/y", b"ye", "b/y has 2 bytes instead of 3"),
        ("b/y", None, "b/y is missing"),
        ("manifest.json", None, "manifest.json is missing"),
        ("manifest.json", b'{"a', "manifest.json cannot be used"),
        ("manifest.json", b"{}", "manifest.json lists no file in a"),
        ("a/new", b"", "manifest.json does not list a/new"),
        ("manifest.json", b"[1]", "manifest.json cannot be used"),
    ],
)
def test_damage_is_named(directory: Path, name: str, content: bytes | None, message: str) -> None:
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    damage = find_damage(directory, ("a",))
    assert damage is not None
    assert message in damage
