"""Kernels and tasks of files."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from neuronjax import nki_imports
from neuronjax.errors import ConfigurationError, did_you_mean
from neuronjax.nki.gym.agreement import Bounds
from neuronjax.nki.gym.evaluation import expected_of
from neuronjax.nki.kernel import Kernel
from neuronjax.nki.legacy.measures import Measured

_PLACE = re.compile(r"(.+?)(?::(\w+)(?:\[(\d+(?:,\d+)*)\])?)?")


@dataclass(frozen=True)
class Place:
    """The place of a kernel: ``FILE``, ``FILE:KERNEL`` or ``FILE:KERNEL[2]``."""

    path: Path
    name: str = ""
    grid: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> Place:
        """Reads a place written as text."""
        match = _PLACE.fullmatch(text)
        assert match is not None
        file, name, grid = match.groups()
        programs = tuple(map(int, grid.split(","))) if grid else ()
        return cls(Path(file), name or "", programs)


def kernel_at(place: Place) -> Kernel:
    """The kernel of a place; of a file without a name, its only one.

    Raises:
      ConfigurationError: the file has no such kernel, or several; OSError: there is no such file.
    """
    module = load(place.path)
    kernels = {
        key: value.kernel if isinstance(value, Measured) else value
        for key, value in vars(module).items()
        if isinstance(value, Kernel | Measured)
    }
    own = [key for key, kernel in kernels.items() if kernel.function.__module__ == module.__name__]
    name = place.name or (own[0] if len(own) == 1 else "")
    there = ", ".join(kernels) or "none"
    if not name:
        raise ConfigurationError(
            f"{place.path} has {len(own)} kernels; write FILE:KERNEL with one of its functions "
            f"marked with nki.jit: {there}."
        )
    if name not in kernels:
        raise ConfigurationError(
            f"{place.path} has no kernel {name!r}; its functions marked with nki.jit: {there}."
            f"{did_you_mean(name, kernels)}"
        )
    return kernels[name][place.grid] if place.grid else kernels[name]


def load(path: Path) -> ModuleType:
    """The module of a file, in which `import nki` and what lies beside it are found."""
    path.open().close()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file.")
    nki_imports.allow()
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # behind all others: no file here takes the place of a library
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Task:
    """What kernels are to compute: their arguments, and the arrays that a reference gives."""

    positional: tuple[object, ...]
    named: Mapping[str, object]
    #: None: values do not count.
    expected: tuple[np.ndarray, ...] | None
    bounds: Bounds


def task_at(path: Path) -> Task:
    """The task of a file with ``inputs()``, which returns a kernel's arguments as a list or as a
    dict by name, and ``reference(*inputs)``; ``RTOL`` and ``ATOL`` may be bounds of results.

    Raises what these raise, and ConfigurationError if the file lacks them.
    """
    module = vars(load(path))
    for name in ("inputs", "reference"):
        if not callable(module.get(name)):
            raise ConfigurationError(
                f"{path} is no task: it has no function {name}. inputs() returns a kernel's "
                "arguments, and reference(*inputs) the results that they should give."
            )
    inputs = module["inputs"]()
    is_named = isinstance(inputs, Mapping)
    if not is_named and not isinstance(inputs, Sequence):
        inputs = (inputs,)
    positional, named = ((), dict(inputs)) if is_named else (tuple(inputs), {})
    expected = expected_of(module["reference"], positional, named) or ()
    bounds = Bounds(module.get("RTOL"), module.get("ATOL"))
    return Task(positional, named, tuple(expected), bounds)
