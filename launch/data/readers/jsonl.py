"""JSON Lines: an object in each line."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from launch.data.readers.plain import open_bytes
from launch.data.records import Item, Record, RecordError


def read_jsonl(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """A record for each line that is not blank."""
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.isspace():
                yield _record(line, f"{path}, line {number}")


def _record(line: bytes, place: str) -> Item:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return RecordError(
            f"{place}: not UTF-8 text: byte {line[error.start]:#04x} at column "
            f"{error.start + 1}. Convert the file, for instance with iconv -t UTF-8."
        )
    except json.JSONDecodeError as error:
        return RecordError(
            f"{place}: expected a JSON object, but: {error.msg} at column {error.colno}."
        )
    except (ValueError, RecursionError) as error:
        return RecordError(f"{place}: expected a JSON object, but: {error}.")
    if not isinstance(value, dict):
        return RecordError(f"{place}: expected a JSON object, not a {type(value).__name__}.")
    return Record(value, place)
