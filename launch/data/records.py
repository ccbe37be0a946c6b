"""Records as files hold them, and counts of what happened to them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from launch.errors import DataError


class Record(NamedTuple):
    """One document, conversation or image."""

    fields: Mapping[str, Any]
    place: str  # where it stands, such as "train.jsonl, line 7"
    folder: Path | None = None  # that relative paths in it start from

    def file(self, path: str) -> Path:
        """A file that it names: in its own folder if it is there, else as it is."""
        own = None if self.folder is None else self.folder / path
        return Path(path) if own is None or not own.is_file() else own


class RecordError(DataError):
    """A record cannot be used; the message has its place and what was expected."""


Value = TypeVar("Value")
Item = Record | RecordError  # what readers give, so that they can go on after an error


def read_values(
    items: Iterable[Item], read: Callable[[Record], Value], *, skip: bool, counts: "Counts"
) -> Iterator[tuple[str, Value]]:
    """(place, read(record)) for every record, counted. With `skip`, records that raise
    RecordError are counted and left out; without it, the error is raised."""
    for item in items:
        counts.records += 1
        try:
            if isinstance(item, RecordError):
                raise item
            value = read(item)
        except RecordError:
            if not skip:
                raise
            counts.unreadable += 1
        else:
            yield item.place, value


@dataclass
class Counts:
    """What happened to the records, by number."""

    records: int = 0  # read
    unreadable: int = 0  # left out: they are not what they should be
    empty: int = 0  # left out: nothing to predict in them
    dropped: int = 0  # left out: longer than a row
    truncated: int = 0  # their ends were left out: longer than a row
    split: int = 0  # in several pieces, whole: longer than a row

    def add_long(self, policy: str, number: int) -> None:
        """Counts documents longer than a row, under what --long_documents does with them."""
        name = {"split": "split", "truncate": "truncated", "drop": "dropped"}[policy]
        setattr(self, name, getattr(self, name) + number)

    def __str__(self) -> str:
        """What is there, in words."""
        words = {
            "unreadable": "cannot be read and are left out",
            "empty": "are empty and left out",
            "dropped": "are longer than a row and left out",
            "truncated": "are longer than a row and truncated",
            "split": "are longer than a row and split",
        }
        numbers = asdict(self)
        parts = [f"{numbers[name]:,} {text}" for name, text in words.items() if numbers[name]]
        total = f"{self.records:,} {'record' if self.records == 1 else 'records'}"
        return f"{total}, of which {', '.join(parts)}" if parts else total


def field_of(record: Record, name: str) -> Any:
    """A field of a record. Raises RecordError if there is no field of this name."""
    if name not in record.fields:
        raise missing_field(record.place, name, record.fields)
    return record.fields[name]


def text_field(record: Record, names: Sequence[str]) -> str:
    """The text in the first field of these names that is there. Raises RecordError if there is
    none, or something else in it."""
    value = first_field(record, names)
    if not isinstance(value, str):
        raise RecordError(
            f"{record.place}: expected a string in {names[0]!r}, not {shortened(value)}."
        )
    return value


def first_field(record: Record, names: Sequence[str]) -> Any:
    """The first field of these names that is there. Raises RecordError if there is none."""
    for name in names:
        if record.fields.get(name) is not None:
            return record.fields[name]
    raise missing_field(record.place, names[:3], record.fields)


def shortened(value: Any, limit: int = 60) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) < limit else text[:limit] + "…"


def missing_field(place: str, name: str | Sequence[str], there: Collection[str]) -> RecordError:
    """The error for a record without a field of this name, or of any of these names."""
    wanted = " or ".join(map(repr, [name] if isinstance(name, str) else name))
    names = ", ".join(map(repr, there)) or "none"
    return RecordError(
        f"{place}: no field {wanted}; the fields are {names}. Name the right field, for instance "
        "with --text_field."
    )
