"""`import nki` for kernels that are written for the chip."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from neuronjax.errors import ConfigurationError

NAME = "nki"


def alias_modules(modules: dict[str, ModuleType]) -> None:
    """Lets Python import modules by other names: `modules` by name.

    Raises:
      ConfigurationError: a package of the name is installed; it is left alone.
    """
    present = sys.modules.get(NAME)
    if present is modules[NAME]:
        return
    if present is not None or importlib.util.find_spec(NAME) is not None:
        raise ConfigurationError(
            f"a package {NAME!r} is already installed and would be hidden. Import neuronjax.nki "
            "under its own name, or use an environment without that package."
        )
    sys.modules.update(modules)
