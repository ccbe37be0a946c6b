"""Records of the JSON files beside this one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(file: str) -> dict[str, dict[str, Any]]:
    """The records of a file by name. The objects of a record stand on top of those of the record
    that `like` names; everything else is its own."""
    records = json.loads((Path(__file__).parent / f"{file}.json").read_text())
    return {name: _whole(records, name) for name in records}


def _whole(records: Mapping[str, Any], name: str) -> dict[str, Any]:
    own = dict(records[name])
    base = _whole(records, own.pop("like")) if "like" in own else {}
    objects = {field: value for field, value in base.items() if isinstance(value, dict)}
    return own | {field: value | own.get(field, {}) for field, value in objects.items()}
