"""Text, windows and batches: determinism, resumption, coverage, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from launch.data import (
    Windows,
    fingerprint,
    held_out_batches,
    read_text,
    split,
    training_batches,
)
from launch.errors import DataError

TEXT = np.arange(251 * 8, dtype=np.int64).astype(np.uint8)


def take(batches: object, count: int) -> list[np.ndarray]:
    return [next(batches) for _ in range(count)]  # type: ignore[call-overload]


def test_built_in_text_is_the_language_reference_without_repetitions() -> None:
    text = read_text(None).tobytes().decode()
    assert len(text) > 300_000
    assert 'The "assert" statement' in text
    paragraphs = text.split("\n\n")
    assert len(paragraphs) == len(set(paragraphs))


def test_batches_are_windows_of_the_text() -> None:
    starts = {TEXT[i : i + 9].tobytes() for i in range(len(TEXT) - 8)}
    for batch in take(training_batches(TEXT, batch_size=5, seq_len=8, seed=0), 20):
        assert (batch.shape, batch.dtype) == ((5, 9), np.int32)
        assert {row.astype(np.uint8).tobytes() for row in batch} <= starts


def test_an_epoch_sees_every_window_once_and_the_next_in_another_order() -> None:
    text = np.arange(40, dtype=np.uint8)
    windows = len(Windows(text, 8))
    first, second = (
        np.concatenate(part)[:, 0]
        for part in np.split(
            np.stack(take(training_batches(text, batch_size=1, seq_len=8, seed=3), 2 * windows)), 2
        )
    )
    assert sorted(first) == sorted(second) == list(range(windows))
    assert list(first) != list(second)


def test_order_depends_on_the_seed_alone() -> None:
    def batches(seed: int) -> np.ndarray:
        return np.stack(take(training_batches(TEXT, batch_size=4, seq_len=8, seed=seed), 10))

    np.testing.assert_array_equal(batches(1), batches(1))
    assert not np.array_equal(batches(1), batches(2))


@pytest.mark.parametrize("taken", [0, 1, 7, 600])
def test_state_continues_exactly(taken: int) -> None:
    original = training_batches(TEXT, batch_size=4, seq_len=8, seed=1)
    take(original, taken)
    state = json.loads(json.dumps(original.get_state()))
    resumed = training_batches(TEXT, batch_size=4, seq_len=8, seed=1)
    resumed.set_state(state)
    np.testing.assert_array_equal(np.stack(take(resumed, 5)), np.stack(take(original, 5)))


def test_held_out_windows_cover_the_text_once() -> None:
    batches = held_out_batches(TEXT, batch_size=6, seq_len=8)
    rows = np.concatenate([batch[:count] for batch, count in batches])
    targets = rows[:, 1:].reshape(-1)
    np.testing.assert_array_equal(targets, TEXT[1 : 1 + len(targets)])
    assert len(TEXT) - 1 - len(targets) < 8
    assert {batch.shape for batch, _ in batches} == {(6, 9)}


def test_split_holds_out_the_end() -> None:
    training, held_out = split(TEXT, 16)
    np.testing.assert_array_equal(np.concatenate([training, held_out]), TEXT)
    assert 0.05 <= len(held_out) / len(TEXT) <= 0.1


def test_fingerprint_notices_one_byte() -> None:
    changed = TEXT.copy()
    changed[100] ^= 1
    assert fingerprint(TEXT) == fingerprint(TEXT.copy()) != fingerprint(changed)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read --data=.*No such file"),
        (b"\xff\xfe\x00a", r"not UTF-8 text: byte 0xff at offset 0.*iconv"),
        (b"abc\0def", r"is binary: a zero byte at offset 3"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_text(str(path))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Is a directory"):
        read_text(str(tmp_path))


@pytest.mark.parametrize("size", [0, 1, 100])
def test_small_text_is_refused_with_the_size_that_is_enough(size: int) -> None:
    with pytest.raises(DataError, match=r"too small for windows.*at least (\d+) tokens") as caught:
        split(TEXT[:size], 16)
    enough = int(str(caught.value).split("at least ")[1].split()[0])
    split(np.zeros(enough, np.uint8), 16)
