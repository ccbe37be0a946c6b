"""What JAX's `cpu` platform makes of JAX's tests, kept beside the code.

It does not change with this project, so that later runs need the platform's side only.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.suite_runner import WHOLE, Record

PATH = Path(__file__).with_name("jax_cpu.json.xz")


def write(path: Path, head: Mapping[str, Any], records: Mapping[str, Record]) -> None:
    """Keeps which tests had which outcome; ``head`` says in which versions, with how many cases."""
    files = {
        name: {
            kind: [i for i, event in record.outcomes.items() if event["outcome"] == kind]
            for kind in sorted({event["outcome"] for event in record.outcomes.values()})
        }
        for name, record in sorted(records.items())
        if WHOLE in record.samples
    }
    text = json.dumps({**head, "files": files}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path, head: Mapping[str, Any]) -> dict[str, Record]:
    """The records in ``path``; none if it is missing or was made under another ``head``."""
    if not path.exists():
        return {}
    kept = json.loads(lzma.decompress(path.read_bytes()))
    if any(kept[key] != value for key, value in head.items()):
        return {}
    return {name: _record(outcomes) for name, outcomes in kept["files"].items()}


def _record(outcomes: Mapping[str, list[str]]) -> Record:
    events = {
        identity: {"id": identity, "outcome": outcome, "error": ""}
        for outcome, identities in outcomes.items()
        for identity in identities
    }
    return Record(events, frozenset({WHOLE}))
