"""The sources that --data names: files, folders, patterns and bundled data, with or without
weights."""

import glob
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.data.formats import FORMATS, format_of
from launch.data.readers.bundled import BUNDLED, PYTHON_REFERENCE
from launch.data.readers.folders import TRANSCRIPT
from launch.data.records import Item
from launch.errors import DataError


@dataclass(frozen=True)
class Source:
    """One of the sources in --data."""

    name: str  # as it was given, without the weight
    format: str  # a name of FORMATS
    files: tuple[Path, ...]  # none if it is bundled
    weight: float | None = None  # part of the rows that come from it; None if none has one

    def items(self, fields: Collection[str] | None = None) -> Iterator[Item]:
        """The source's records, file by file, with all fields or at least these; a record that
        cannot be read is given as RecordError. Raises DataError for a file that cannot be read at
        all."""
        if not self.files:
            yield from BUNDLED[self.name].read()
        for file in self.files:
            yield from FORMATS[self.format].read(file, fields)


def open_sources(text: str | None, format_name: str | None) -> list[Source]:
    """The sources in --data (None: the default text), in order.

    Raises DataError for sources that are missing or have no known format, and for invalid weights.
    """
    if format_name is not None and format_name not in FORMATS:
        raise DataError(
            f"--data_format={format_name} is unknown; choose one of {', '.join(FORMATS)}."
        )
    parts = [part for part in (text or PYTHON_REFERENCE).split(",") if part]
    sources = [_open(*_split_weight(part), format_name) for part in parts]
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        without = ", ".join(source.name for source in sources if source.weight is None)
        raise DataError(
            f"--data={text} gives some sources a weight, but not {without}. Write PATH:WEIGHT for "
            "all of them, or for none."
        )
    if not sources:
        raise DataError(f"--data={text} names no source. Give files, folders or patterns.")
    return sources


def _split_weight(part: str) -> tuple[str, float | None]:
    """(what, weight) of "what:weight". A colon that belongs to a name that is there is no mark."""
    name, mark, weight = part.rpartition(":")
    if not mark or _expand(part):
        return part, None
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise DataError(
            f"--data={part}: the weight {weight!r} is not a positive number. Write PATH:WEIGHT, "
            f"such as {name or 'train.jsonl'}:0.5."
        )
    return name, value


def _open(name: str, weight: float | None, format_name: str | None) -> Source:
    if name in BUNDLED:
        return Source(name, BUNDLED[name].format, (), weight)
    paths = _expand(name)
    if not paths:
        raise DataError(
            f"cannot read --data={name}: No such file or directory. Give a path, a pattern such as "
            f"'data/*.jsonl', or one of the bundled {', '.join(BUNDLED)}."
        )
    files = [file for path in paths for file in _files(path, format_name)]
    formats = {format_name or format_of(file) or "text" for file in files}
    if len(formats) > 1:
        raise DataError(
            f"--data={name} holds files of several formats, {', '.join(sorted(formats))}. Choose "
            "one with --data_format, or name the sources individually, separated by commas."
        )
    return Source(name, formats.pop(), tuple(files), weight)


def _expand(name: str) -> list[Path]:
    path = Path(name)
    return [path] if path.exists() else [Path(match) for match in sorted(glob.glob(name))]


def _files(path: Path, format_name: str | None) -> Sequence[Path]:
    """The files that a path stands for: itself, or those below the folder, in order of names."""
    if not path.is_dir():
        return [path]
    if (path / "dataset_dict.json").is_file():
        splits = sorted(file.parent.name for file in path.glob("*/dataset_info.json"))
        raise DataError(
            f"--data={path} is a dictionary of data sets: {', '.join(splits)}. Name one of them, "
            f"such as --data={path / splits[0] if splits else path}."
        )
    if (path / "dataset_info.json").is_file():
        return _arrow_files(path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and _visible(file, path))
    wanted = [format_name] if format_name else list(FORMATS)
    sounds = {file.with_suffix(TRANSCRIPT) for file in files if format_of(file) == "sounds"}
    known = [file for file in files if format_of(file) in wanted and file not in sounds]
    chosen = known or (files if format_name else [])
    if not chosen:
        suffixes = [suffix for form in FORMATS.values() for suffix in form.suffixes]
        raise DataError(
            f"--data={path} holds no file of a known format: file names must end in "
            f"{', '.join(suffixes)}. Choose another folder, or --data_format."
        )
    return chosen


def _visible(file: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _arrow_files(path: Path) -> list[Path]:
    """The files of what `datasets` saved to a folder or keeps in its cache, in its order."""
    if not (path / "state.json").is_file():
        return sorted(path.glob("*.arrow"))
    try:
        state = json.loads((path / "state.json").read_text())
        return [path / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path / 'state.json'} cannot be used: expected the list of the data set's files in "
            f"'_data_files' ({error!r}). Save the data set again with save_to_disk."
        ) from error
