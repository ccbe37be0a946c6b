"""Libraries that only some formats need."""

import importlib
from typing import Any

from launch.errors import DataError


def library(module: str, package: str, purpose: str) -> Any:
    """The module. Raises DataError with the command that installs it if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs {package}, which is not installed: pip install {package}"
        ) from error
