"""What the runner of nki-library's tests makes of the records of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.conformance import nki_library, nki_library_formats
from tests.conformance.nki_library_records import (
    TestTimeoutError,
    evenly,
    is_too_large,
    spread_first,
)

RECORDS = [
    {"collected": 7, "left_out": 2},
    {"id": "a", "outcome": "passed", "seconds": 1.0},
    {"id": "b", "outcome": "failed", "message": "row 3\n is wrong"},
    {"id": "c", "outcome": "skipped"},
    {"id": "d", "outcome": "failed", "message": "row 14 is wrong"},
    {"id": "e", "outcome": "passed"},
    {"id": "f", "outcome": "too large", "message": "Unable to allocate 9 GiB for an array"},
]


def test_counts_and_causes_of_records() -> None:
    assert nki_library.counts(RECORDS) == {
        "collected": 7,
        "left out": 2,
        "failed": 2,
        "passed": 2,
        "skipped": 1,
        "too large": 1,
    }
    assert nki_library.causes(RECORDS) == {"row # is wrong": 2}


def test_what_needs_too_much_is_too_large() -> None:
    cause = TestTimeoutError("it took long")
    within = RuntimeError("the kernel failed")
    within.__cause__ = cause
    of_torch = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")
    assert all(map(is_too_large, (cause, within, MemoryError("9 GiB"), of_torch)))
    assert not is_too_large(RuntimeError("row 3 is wrong"))


def test_samples_are_spread_evenly() -> None:
    assert evenly("abcdefgh", 3) == ["a", "c", "f"]
    assert evenly("abc", 5) == evenly("abc", 0) == ["a", "b", "c"]
    assert spread_first("abcdefgh") == list("aecgbfdh")
    assert spread_first("abcde") == list("aecbd")
    assert spread_first("a") == ["a"]
    assert spread_first("") == []


def test_files_with_failures_are_explained() -> None:
    score = json.loads(nki_library.SCOREBOARD.read_text())
    failing = {name for name, file in score.items() if any("failed" in r for r in _runs(file))}
    assert failing == {name for name, file in score.items() if "explained" in file}


def _runs(file: dict[str, dict[str, int] | str]) -> list[dict[str, int]]:
    return [run for run in file.values() if isinstance(run, dict)]


@pytest.mark.parametrize(
    ("name", "numbers", "word"),
    [
        ("float8_e4m3fn_x4", [1, -2, 448, 0.5], 0x307EC038),
        ("float8_e5m2_x4", [1, -2, 448, 0.5], 0x385FC03C),
        ("float4_e2m1fn_x4", [0.5, -1, 6, 0], 0x07A1),
    ],
)
def test_words_of_mx_elements(name: str, numbers: list[float], word: int) -> None:
    dtype = nki_library_formats.WORDS[name]
    words = nki_library_formats.static_cast(np.array([numbers]), dtype)
    assert words.dtype == dtype
    assert nki_library_formats.given(words).dtype.name == name
    plain = np.asarray(nki_library_formats.given(words))
    assert plain.tolist() == [[word]]
    assert np.asarray(nki_library_formats.Result(plain), dtype=dtype) == words
    assert nki_library_formats.static_cast(words, np.float32).tolist() == [numbers]
