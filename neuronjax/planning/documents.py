"""Files in TOML that people write: every way in which they are wrong is one error."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from neuronjax.errors import ConfigurationError, quoted


def read_toml(what: str, path: str | Path) -> dict[str, Any]:
    """The tables of a file.

    ConfigurationError: no such file, no UTF-8, no TOML, or nested too deep. `what` names it.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(
            f"{what} {quoted(str(path))}: {error.strerror}; give a TOML file."
        ) from None
    except ValueError as error:  # of UTF-8, or a NUL in the path
        raise ConfigurationError(f"{what} {quoted(str(path))} is not TOML: {error}") from None
    return parse_toml(f"{what} {path}", text)


def parse_toml(what: str, text: str) -> dict[str, Any]:
    """The tables of a text. ConfigurationError: no TOML, or nested too deep. `what` names it."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError(f"{what} is not TOML: it is nested too deeply.") from None
    except ValueError as error:
        raise ConfigurationError(f"{what} is not TOML: {error}") from None
