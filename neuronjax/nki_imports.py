"""`import nki` for kernels that are written for the chip, without the compiler's package.

Python asks this finder last, so that packages which are installed are found first. `neuronjax.nki`
is loaded only when a kernel asks for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("nki", "neuronxcc")
"""Packages that kernels import NKI from; the second is the older one."""

_MODULES = {
    "collectives": "collectives",
    "compiler": "compiler",
    "isa": "isa",
    "isa.constants": "constants",
    "language": "language",
    "typing": "typing",
}
"""Name in `nki` -> name in `neuronjax.nki`."""


class _Loader(Loader):
    """Puts `neuronjax.nki` and its modules where `import` looks for those of a name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        package = importlib.import_module("neuronjax.nki")
        prefix = "nki"
        if module.__name__ == "neuronxcc":
            prefix = "neuronxcc.nki"
            module.__path__ = []
            vars(module)["nki"] = package
        sys.modules[prefix] = package
        for name, own in _MODULES.items():
            sys.modules[f"{prefix}.{name}"] = importlib.import_module(f"neuronjax.nki.{own}")


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _LOADER) if fullname in NAMES else None


_LOADER, _FINDER = _Loader(), _Finder()


def allow() -> None:
    """From now on, `import nki` finds `neuronjax.nki` unless it finds another package."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def is_ours(spec: ModuleSpec | None) -> bool:
    """Whether an import that was looked for would find `neuronjax.nki`."""
    return spec is not None and spec.loader is _LOADER
