"""The file formats that records are read from."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.data.readers.folders import read_image, read_sound
from launch.data.readers.jsonl import read_jsonl
from launch.data.readers.plain import OPENERS, read_text
from launch.data.readers.tables import read_arrow, read_parquet
from launch.data.records import Item

Reader = Callable[[Path, Collection[str] | None], Iterator[Item]]


@dataclass(frozen=True)
class Format:
    """A format and its file name suffixes."""

    suffixes: tuple[str, ...]
    read: Reader  # a file's records, with the fields that are asked for if it can choose
    compressible: bool = False
    whole: bool = False  # a file is one record, which has no fields to choose from


FORMATS: Mapping[str, Format] = {
    "text": Format((".txt", ".text", ".md", ".rst"), read_text, compressible=True, whole=True),
    "jsonl": Format((".jsonl", ".ndjson", ".json"), read_jsonl, compressible=True),
    "parquet": Format((".parquet",), read_parquet),
    "arrow": Format((".arrow",), read_arrow),
    "images": Format((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"), read_image),
    "sounds": Format((".wav", ".flac", ".mp3", ".ogg"), read_sound),
}


def format_of(path: Path) -> str | None:
    """The format that the file's name indicates; None if it indicates none."""
    compressed = path.suffix in OPENERS
    suffix = (path.with_suffix("") if compressed else path).suffix.lower()
    for name, form in FORMATS.items():
        if suffix in form.suffixes and (form.compressible or not compressed):
            return name
    return None
