"""Modules that are loaded when they are first used.

A process that runs programs on the host executor needs neither lowering nor engines nor timing, and
would wait for them at its start. Who needs them now and then writes::

    if TYPE_CHECKING:
        from neuronjax.lower import passes
    else:
        passes = Lazy("neuronjax.lower.passes")
"""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module; the first look at a name in it loads it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._module), name)
