"""What a config.json without some field means to the libraries that wrote it, from defaults.json.

A record is for a `model_type`, for a class of diffusers, which has none, or for others to be like.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.records import read_records


@dataclass(frozen=True)
class Defaults:
    """The fields of config.json that a family of models knows.

    Attributes:
      config: what a missing field stands for; None where it follows from other fields.
      names: the family's own names for some of them.
      fixed: fields of which one value alone is supported.
      reasons: why that is so, for messages that say more than the value.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


DEFAULTS: Mapping[str, Defaults] = {
    name: Defaults(**record) for name, record in read_records(Path(__file__).with_suffix(".json"))
}
