"""Checksums of a directory's files: the storage format itself does not detect a flipped bit."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

NAME = "manifest.json"


def write_manifest(directory: Path, folders: tuple[str, ...]) -> None:
    """Writes `directory`/manifest.json: size and SHA-256 of every file in the given folders.

    Files and folders are on the disk, and not only in its cache, when this returns.
    """
    files = {str(file.relative_to(directory)): _entry(file) for file in _files(directory, folders)}
    (directory / NAME).write_text(json.dumps(files, indent=0, sort_keys=True))
    for path in (*directory.rglob("*"), directory):
        flush(path)


def find_damage(directory: Path, required: tuple[str, ...]) -> str | None:
    """Describes the first file that differs from the manifest; None if all match.

    Files in each of the `required` folders must be listed, and so must every file in a listed
    folder.
    """
    try:
        files = json.loads((directory / NAME).read_text())
        return _missing(directory, files, required) or _different(directory, files)
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{NAME} cannot be used ({error})"


def flush(path: Path) -> None:
    """Makes the operating system write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _missing(directory: Path, files: dict[str, Any], required: tuple[str, ...]) -> str | None:
    folders = {Path(name).parts[0] for name in files}
    for folder in required:
        if folder not in folders:
            return f"{NAME} lists no file in {folder}"
    there = {str(file.relative_to(directory)) for file in _files(directory, tuple(folders))}
    unlisted = sorted(there - files.keys())
    return f"{NAME} does not list {unlisted[0]}" if unlisted else None


def _different(directory: Path, files: dict[str, Any]) -> str | None:
    for name, expected in files.items():
        file = directory / name
        size = file.stat().st_size
        if size != expected["size"]:
            return f"{name} has {size} bytes instead of {expected['size']}"
        if _entry(file) != expected:
            return f"the content of {name} does not match its checksum"
    return None


def _files(directory: Path, folders: tuple[str, ...]) -> list[Path]:
    return [
        file for folder in folders for file in (directory / folder).rglob("*") if file.is_file()
    ]


def _entry(file: Path) -> dict[str, int | str]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}
