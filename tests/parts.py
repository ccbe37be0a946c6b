"""Parts of the tests, so that a part of each table of cases can be run alone.

`--part=K/N` deals the cases of every test function out into N parts and runs those of part K. The
first part holds at least one case of each function, and all parts together hold every case once.
Which case falls into which part depends on its name alone, so a part is the same everywhere.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from typing import NamedTuple


class Part(NamedTuple):
    """Part `number` of `total`; parts are numbered from 1."""

    number: int
    total: int


ALL = Part(1, 1)


def read_part(text: str) -> Part:
    """Reads `K/N`; `argparse.ArgumentTypeError` says what is wrong with it."""
    number, slash, total = text.partition("/")
    if not (slash and number.isdecimal() and total.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 1/4")
    part = Part(int(number), int(total))
    if not 1 <= part.number <= part.total:
        raise argparse.ArgumentTypeError(f"{text!r}: there are parts 1 to {part.total}")
    return part


def select_part(names: Iterable[str], part: Part) -> set[str]:
    """Returns the names of the cases in a part, from the names of all (`file::test[case]`)."""
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(name.partition("[")[0], []).append(name)
    chosen: set[str] = set()
    for of_function in cases.values():
        dealt = sorted(of_function, key=_number_of)
        chosen.update(dealt[part.number - 1 :: part.total])
    return chosen


def _number_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
