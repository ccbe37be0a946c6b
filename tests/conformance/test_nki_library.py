"""What the runner of nki-library's tests makes of the records of a run."""

from __future__ import annotations

from tests.conformance import nki_library
from tests.conformance.nki_library_records import evenly

RECORDS = [
    {"collected": 7, "left_out": 2},
    {"id": "a", "outcome": "passed", "seconds": 1.0},
    {"id": "b", "outcome": "failed", "message": "row 3\n is wrong"},
    {"id": "c", "outcome": "skipped"},
    {"id": "d", "outcome": "failed", "message": "row 14 is wrong"},
    {"id": "e", "outcome": "passed"},
]


def test_counts_and_causes_of_records() -> None:
    expected = {"collected": 7, "failed": 2, "left out": 2, "passed": 2, "skipped": 1}
    assert nki_library.counts(RECORDS) == expected
    assert nki_library.causes(RECORDS) == {"row # is wrong": 2}


def test_samples_are_spread_evenly() -> None:
    assert evenly("abcdefgh", 3) == ["a", "c", "f"]
    assert evenly("abc", 5) == evenly("abc", 0) == ["a", "b", "c"]
