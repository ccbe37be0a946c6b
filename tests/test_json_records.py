"""Records that were written as JSON are read back equal, and nothing of them is dropped."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from neuronjax.json_records import read_record


class Span(NamedTuple):
    name: str
    ends: tuple[int, int]


@dataclass(frozen=True)
class Recording:
    spans: tuple[Span, ...]
    size: tuple[int, int]
    last: Span | None = None


RECORDING = Recording((Span("load", (0, 5)), Span("add", (5, 7))), (128, 512), Span("add", (5, 7)))


def written(recording: Recording) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recording)))
    return document


def test_records_come_back_equal() -> None:
    assert read_record(Recording, written(RECORDING)) == RECORDING


@pytest.mark.parametrize("field", ["spans", "size", "last"])
@pytest.mark.parametrize("entries", ["more", "fewer"])
def test_tuples_of_other_lengths_are_refused(field: str, entries: str) -> None:
    document = written(RECORDING)
    changed = document[field][0] if field == "spans" else document[field]
    changed[:] = [*changed, 1] if entries == "more" else changed[:-1]
    with pytest.raises(TypeError):
        read_record(Recording, document)
