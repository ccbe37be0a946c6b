"""Tables: parquet files, and arrow files as Hugging Face `datasets` writes them."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from launch.data.extras import library
from launch.data.records import Item, Record, missing_field
from launch.errors import DataError

_ROWS = 1_000  # at a time
_FILE_FORMAT = b"ARROW1"  # how files of arrow's other format begin


def read_parquet(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """Yields a record for each row, with these columns, or all."""
    parquet = library("pyarrow.parquet", "pyarrow", f"--data={path}")
    with _reading(path, "a parquet file"), parquet.ParquetFile(path) as file:
        columns = _columns(path, file.schema_arrow.names, fields)
        yield from _records(path, file.iter_batches(_ROWS, columns=columns))


def read_arrow(path: Path, fields: Collection[str] | None) -> Iterator[Item]:
    """Yields a record for each row, with these columns, or all, of a stream or a file in arrow's
    IPC format."""
    ipc = library("pyarrow.ipc", "pyarrow", f"--data={path}")
    with _reading(path, "an arrow file"), path.open("rb") as stream:
        is_file = stream.read(len(_FILE_FORMAT)) == _FILE_FORMAT
        stream.seek(0)
        reader = ipc.open_file(stream) if is_file else ipc.open_stream(stream)
        columns = _columns(path, reader.schema.names, fields)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        selected = (batch.select(columns) for batch in batches)
        yield from _records(path, (b.slice(i, _ROWS) for b in selected for i in _starts(b)))


def _starts(batch: Any) -> range:
    return range(0, batch.num_rows, _ROWS)


class _reading:
    """Makes a DataError of what pyarrow raises."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"cannot read --data={self._path}: {error.strerror}") from error
        # pyarrow's own errors are subclasses of these
        if isinstance(error, OSError | ValueError | KeyError | NotImplementedError):
            raise DataError(
                f"--data={self._path} cannot be read as {self._kind}: {error}"
            ) from error


def _columns(path: Path, there: list[str], fields: Collection[str] | None) -> list[str]:
    for name in fields or ():
        if name not in there:
            raise missing_field(str(path), name, there)
    return there if fields is None else list(fields)


def _records(path: Path, batches: Any) -> Iterator[Item]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield Record(row, f"{path}, row {number}")
