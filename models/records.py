"""Records of JSON files, which may be like one another."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file with their names. The objects of a record stand on top of those of the
    record that `like` names; everything else is its own."""
    records = json.loads(file.read_text())
    for name in records:
        yield name, _whole(records, name)


def _whole(records: Mapping[str, Any], name: str) -> dict[str, Any]:
    own = dict(records[name])
    base = _whole(records, own.pop("like")) if "like" in own else {}
    objects = {field: value for field, value in base.items() if isinstance(value, dict)}
    return own | {field: value | own.get(field, {}) for field, value in objects.items()}
