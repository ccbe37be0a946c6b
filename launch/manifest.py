"""Checksums over a directory's files: the storage format itself does not notice a flipped bit."""

import hashlib
import json
from pathlib import Path

NAME = "manifest.json"


def write_manifest(directory: Path, folders: tuple[str, ...]) -> None:
    """Writes `directory`/manifest.json: size and SHA-256 of every file in the given folders."""
    files = {str(file.relative_to(directory)): _entry(file) for file in _files(directory, folders)}
    (directory / NAME).write_text(json.dumps(files, indent=0, sort_keys=True))


def find_damage(directory: Path) -> str | None:
    """What is wrong with the first file that differs from the manifest; None if all is well."""
    try:
        files = json.loads((directory / NAME).read_text())
        for name, expected in files.items():
            file = directory / name
            size = file.stat().st_size
            if size != expected["size"]:
                return f"{name} has {size} bytes instead of {expected['size']}"
            if _entry(file) != expected:
                return f"the content of {name} differs from its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{NAME} cannot be used ({error})"
    return None


def _files(directory: Path, folders: tuple[str, ...]) -> list[Path]:
    return [
        file for folder in folders for file in (directory / folder).rglob("*") if file.is_file()
    ]


def _entry(file: Path) -> dict[str, int | str]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}
