"""Frozen records with other values in some of their fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

Record = TypeVar("Record")
_Slot = tuple[str, Callable[[Any], Any], Callable[[Any, Any], None]]


def altered(record: Record, **values: Any) -> Record:
    """A record of slots with other `values` in some fields, the others as they are.

    Unlike ``dataclasses.replace``, it takes the values as they are: they are not checked, and what
    follows from them is not computed again. Passes make most of their records in this way.
    """
    kind: Any = type(record)
    new: Record = object.__new__(kind)
    for name, get, put in _slots(kind):
        put(new, values[name] if name in values else get(record))
    return new


@functools.cache
def _slots(kind: Any) -> tuple[_Slot, ...]:
    """Fields, with what reads and writes them past the class."""
    slots = ((field.name, getattr(kind, field.name)) for field in dataclasses.fields(kind))
    return tuple((name, slot.__get__, slot.__set__) for name, slot in slots)
