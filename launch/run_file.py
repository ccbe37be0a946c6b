"""The file in a run directory that says how the run was started."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.errors import OutputError

RUN_FILE = "run.json"


def write_run_file(
    directory: Path, settings: Mapping[str, Any], model: Mapping[str, Any] | None
) -> None:
    """Writes the values of flags, and the fields of the model's config.json if no flag says what
    it is; --config starts the same run in another directory from it. Raises OutputError."""
    content = {"settings": dict(settings), "model": None if model is None else dict(model)}
    fresh = directory / f"{RUN_FILE}.new"
    try:
        fresh.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        fresh.replace(directory / RUN_FILE)
    except OSError as error:
        raise OutputError(f"cannot write {directory / RUN_FILE}: {error.strerror}") from error
