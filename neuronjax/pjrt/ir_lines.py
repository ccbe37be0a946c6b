"""LLVM IR with lines that stand for several.

* ``%value = get TYPE %record, FIELD`` loads a field of a record;
* ``put TYPE VALUE %record, FIELD`` stores one;
* ``%value = python TYPE NAME(ARGUMENTS)`` calls the function whose address the table holds under
  that name, with or without a value.

Names in braces are addresses of words, offsets of fields, and numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

_GET = re.compile(r"^  (%\w+) = get (\w+) (%\w+), (\w+)$", re.MULTILINE)
_PUT = re.compile(r"^  put (\w+ \S+) (%\w+), (\w+)$", re.MULTILINE)
_NAME = re.compile(r"\{(\w+)\}")
_FOLDER = Path(__file__).parent / "machine_code"
_PYTHON = re.compile(r"^  ((?:%\w+ = )?)python (\w+) (\w+)(\(.*\))$", re.MULTILINE)


def expanded(
    file: str, words: Mapping[str, str], fields: Mapping[str, int], numbers: Mapping[str, int]
) -> str:
    """Returns a file of `machine_code` as IR; ``words`` are addresses as IR, ``fields`` offsets in
    bytes."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    counter = itertools.count()

    def get(line: re.Match[str]) -> str:
        value, kind, record, field = line.groups()
        return (
            f"  {value}.at = getelementptr i8, ptr {record}, i64 {fields[field]}\n"
            f"  {value} = load {kind}, ptr {value}.at"
        )

    def put(line: re.Match[str]) -> str:
        value, record, field = line.groups()
        at = f"%put.{next(counter)}"
        return (
            f"  {at} = getelementptr i8, ptr {record}, i64 {fields[field]}\n"
            f"  store {value}, ptr {at}"
        )

    def python(line: re.Match[str]) -> str:
        target, kind, word, arguments = line.groups()
        function = f"%python.{next(counter)}"
        return (
            f"  {function} = load ptr, ptr {words[word]}\n"
            f"  {target}call {kind} {function}{arguments}"
        )

    for pattern, expand in ((_GET, get), (_PUT, put), (_PYTHON, python)):
        text = pattern.sub(expand, text)
    names = {**words, **fields, **numbers}
    return _NAME.sub(lambda name: str(names[name[1]]), text)
