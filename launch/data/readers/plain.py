"""Text files, compressed or not."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from launch.data.records import Item, Record, RecordError
from launch.errors import DataError

FIELD = "text"

OPENERS: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


def read_text(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """The file as one record with the field "text"."""
    with open_bytes(path) as stream:
        raw = stream.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        yield RecordError(
            f"--data={path} is not UTF-8 text: byte {raw[error.start]:#04x} at offset "
            f"{error.start}. Convert the file, for instance with iconv -t UTF-8."
        )
        return
    if "\0" in text:
        yield RecordError(
            f"--data={path} is binary: a zero byte at offset {raw.index(0)}. Give a text file."
        )
        return
    yield Record({FIELD: text}, str(path))


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, decompressed as its name indicates.

    Raises DataError if it cannot be opened or read.
    """
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read --data={path}: {reason}. Give the path of a readable file."
        ) from error
