"""`import nki` for kernels that are written for the chip, without the compiler's package.

Python asks this finder last, so that packages which are installed are found first. `neuronjax.nki`
is loaded only when a kernel asks for it.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_TOPICS = (
    "attention", "allocated_attention", "allocated_fused_linear", "vision", "qkv", "mlp", "cumsum",
    "blockwise_mm", "RoPE",
)  # fmt: skip
"""Modules of AWS's own kernels."""

_MODULES: Mapping[str, Mapping[str, str]] = {
    "nki": {
        "nki": "nki",
        "nki.collectives": "nki.collectives",
        "nki.compiler": "nki.compiler",
        "nki.isa": "nki.isa",
        "nki.isa.constants": "nki.constants",
        "nki.language": "nki.language",
        "nki.typing": "nki.typing",
    },
    "neuronxcc": {
        "neuronxcc.nki": "nki.legacy",
        "neuronxcc.nki.compiler": "nki.legacy.compiler",
        "neuronxcc.nki.isa": "nki.legacy.isa",
        "neuronxcc.nki.kernels": "nki.legacy.kernels",
        **{
            f"neuronxcc.nki.{package}.{topic}": "nki.legacy.kernels"
            for package in ("kernels", "_private_kernels")
            for topic in _TOPICS
        },
        "neuronxcc.nki._private_kernels": "nki.legacy.kernels",
        "neuronxcc.nki.language": "nki.legacy.language",
        "neuronxcc.nki.language.constants": "nki.legacy.constants",
        "neuronxcc.nki.typing": "nki.legacy.typing",
    },
    "jax_neuronx": {"jax_neuronx": "nki.legacy.jax_calls"},
}
"""Package that kernels import NKI from, the others for NKI 0.x -> the modules that it has, and
where these are in `neuronjax`."""

NAMES = tuple(_MODULES)


class _Loader(Loader):
    """Puts modules of `neuronjax.nki` where `import` looks for those of a name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for name, own in _MODULES[module.__name__].items():
            sys.modules[name] = importlib.import_module(f"neuronjax.{own}")
        if module.__name__ == "neuronxcc":
            vars(logging).setdefault("OFF", logging.CRITICAL + 10)  # as that package does
            module.__path__ = []
            vars(module)["nki"] = sys.modules["neuronxcc.nki"]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _LOADER) if fullname in NAMES else None


_LOADER, _FINDER = _Loader(), _Finder()


def allow() -> None:
    """Lets `import nki` find `neuronjax.nki` from now on, unless it finds another package."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def is_ours(spec: ModuleSpec | None) -> bool:
    """Whether an import that was looked for would find `neuronjax.nki`."""
    return spec is not None and spec.loader is _LOADER
