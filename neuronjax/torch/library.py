"""The versions of PyTorch and torchax that work together, and how they are loaded."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from neuronjax.errors import ConfigurationError
from neuronjax.jaxlib_api import tracing

TESTED = {"torch": "2.13", "torchax": "0.0.13"}
"""The release of each that the tests run with."""

_GONE = {
    "all": ("dimname", "dimname_out"),
    "index_add": ("dimname",),
    "index_copy": ("dimname",),
    "index_copy_": ("dimname",),
    "index_fill": ("Dimname_Scalar", "Dimname_Tensor"),
    "index_fill_": ("Dimname_Scalar", "Dimname_Tensor"),
    "norm": ("names_ScalarOpt_dim", "names_ScalarOpt_dim_dtype", "names_dtype_out", "names_out"),
    "prod": ("dim_Dimname",),
    "std": ("correction_names", "correction_names_out", "names_dim", "names_out"),
    "std_mean": ("correction_names", "names_dim"),
    "unbind": ("Dimname",),
}
"""Overloads of operators for named dimensions, which torch 2.13 no longer has. torchax lists them
in its tables when it is loaded, and never calls them."""


def load() -> ModuleType:
    """The module `torchax`, with its tables; afterwards, locations of ops leave out its frames.

    ConfigurationError: torch or torchax is missing, or of another release than those tested.
    """
    for package, release in TESTED.items():
        _check(package, release)
    torch = importlib.import_module("torch")
    with _overloads_of_names(torch):
        torchax = importlib.import_module("torchax")
        importlib.import_module("torchax.decompositions")
    importlib.import_module("torchax.tensor").Tensor.type_as = _type_as
    for library in (torch, torchax):
        tracing.leave_out_frames(str(library.__path__[0]))
    return torchax


def _check(package: str, release: str) -> None:
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        installed = ""
    if installed != release and not installed.startswith(f"{release}."):
        state = f"{package} {installed} is" if installed else f"{package} is not"
        wanted = " ".join(f"{name}=={version}.*" for name, version in TESTED.items())
        raise ConfigurationError(
            f"PyTorch modules run through torchax, with torch {TESTED['torch']} and torchax "
            f"{TESTED['torchax']}; {state} installed. Run pip install {wanted!r}, or "
            "pip install neuronjax[torch]."
        )


def _type_as(tensor: Any, other: Any) -> Any:
    """A tensor in the type of another. torchax' own changes the type of the tensor itself, and is a
    method of its class, which its registry of operators cannot override."""
    return tensor.to(other.dtype)


@contextlib.contextmanager
def _overloads_of_names(torch: ModuleType) -> Iterator[None]:
    """Stand-ins for `_GONE` where torch lacks them, for as long as torchax is being loaded."""
    missing = [
        (packet, name)
        for operator, names in _GONE.items()
        for name in names
        if not hasattr(packet := getattr(torch.ops.aten, operator), name)
    ]
    for packet, name in missing:
        setattr(packet, name, f"{packet}.{name}")
    try:
        yield
    finally:
        for packet, name in missing:
            delattr(packet, name)
