"""JSON Lines: one object per line."""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from launch.data.readers.plain import open_bytes
from launch.data.records import Item, Record, RecordError

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a pair, or what is no character
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_jsonl(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """Yields a record for each line that is not blank."""
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.isspace():
                yield _record(line, f"{path}, line {number}", path.parent)


def _record(line: bytes, place: str, folder: Path) -> Item:
    try:
        value = json.loads(line.decode().rstrip("\r\n"))
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
    if _ESCAPED_SURROGATE.search(line) and (lone := _lone_surrogate(value)):
        return RecordError(
            f"{place}: expected text, but {lone} is an unpaired surrogate, which is not a "
            "character. Write the whole pair, or leave it out."
        )
    return Record(value, place, folder)


def _lone_surrogate(value: Any) -> str | None:
    """The first one anywhere in the value, as JSON escapes it; pairs were joined by the parser."""
    match = _SURROGATE.search(json.dumps(value, ensure_ascii=False))
    return None if match is None else f"\\u{ord(match[0]):04x}"
