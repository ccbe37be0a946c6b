"""Configs of well-known checkpoints, read from the JSON files beside this one.

A file has a record per name on https://huggingface.co, with the folder of a pipeline's model behind
it: `config` has the fields of config.json, without those that are the reference's defaults, on top
of those of the record that `like` names. `source` says where the numbers can be read, `parameters`
how many weights the publisher counts, and `refused` why the model cannot be built.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = ("decoders", "encoders", "text_to_text", "images", "speech", "diffusion")


@dataclass(frozen=True)
class Published:
    """A published config."""

    config: Mapping[str, Any]
    source: str
    parameters: int | None = None
    refused: str | None = None


def _read() -> Iterator[tuple[str, Published]]:
    for name in FILES:
        records = json.loads((Path(__file__).parent / f"{name}.json").read_text())
        for key, record in records.items():
            others = {field: value for field, value in record.items() if field != "like"}
            yield key, Published(**others | {"config": _config(records, key)})


def _config(records: Mapping[str, Any], key: str) -> dict[str, Any]:
    record = records[key]
    base = _config(records, record["like"]) if "like" in record else {}
    return {**base, **record["config"]}


RECORDS: Mapping[str, Published] = dict(_read())
"""Name -> what is published of it."""

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: record.config for name, record in RECORDS.items()
}
"""Name -> fields of config.json."""
