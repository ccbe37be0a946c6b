"""The file in a run directory that records how the run was started."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.errors import OutputError

RUN_FILE = "run.json"


def write_run_file(
    directory: Path,
    settings: Mapping[str, Any],
    model: Mapping[str, Any] | None,
    environment: Mapping[str, str],
) -> None:
    """Writes the flag values, the fields of the model's config.json if no flag names it, and the
    variables that a preset set; --config uses them to start the same run in another directory.
    Raises OutputError."""
    content = {
        "settings": dict(settings),
        "model": None if model is None else dict(model),
        "environment": dict(environment),
    }
    write_json(directory / RUN_FILE, content)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Writes or replaces the file atomically. Raises OutputError."""
    fresh = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(exist_ok=True)
        fresh.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        fresh.replace(file)
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror}") from error
