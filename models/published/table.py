"""Configs of well-known checkpoints, read from the JSON files beside this one.

A file has a record per name on https://huggingface.co, with the folder of a pipeline's model behind
it: `config` has the fields of config.json, without those that are the reference's defaults, on top
of those of the record that `like` names. `source` says where the numbers can be read, `parameters`
how many weights the publisher counts, and `refused` why the model cannot be built.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.records import read_records

FILES = ("decoders", "encoders", "text_to_text", "images", "speech", "diffusion")


@dataclass(frozen=True)
class Published:
    """A published config."""

    config: Mapping[str, Any]
    source: str
    parameters: int | None = None
    refused: str | None = None


RECORDS: Mapping[str, Published] = {
    name: Published(**record)
    for file in FILES
    for name, record in read_records(Path(__file__).with_name(f"{file}.json"))
}
"""Name -> what is published of it."""

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: record.config for name, record in RECORDS.items()
}
"""Name -> fields of config.json."""
