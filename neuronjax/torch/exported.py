"""Programs that ``torch.export`` saved in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neuronjax.errors import ScriptError
from neuronjax.lazy import Lazy
from neuronjax.torch import library
from neuronjax.torch.program import Program, to_jax

if TYPE_CHECKING:
    import torch
else:
    torch = Lazy("torch")

SUFFIX = ".pt2"


def load(path: str) -> tuple[Program]:
    """The program of a file, with the example inputs that it was exported with.

    Raises:
      ScriptError: the file is missing, is no such program, or has no example inputs.
      ConfigurationError: torch or torchax is missing or has an untested version.
    """
    library.load()
    if not Path(path).is_file():
        raise ScriptError(f"there is no file {path}.")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise ScriptError(f"{path} is no program of torch.export: {error}.") from error
    if program.example_inputs is None:
        raise ScriptError(f"{path} has no example inputs; export it again with them.")
    inputs, keywords = program.example_inputs
    return (to_jax(program.module(), *inputs, **keywords),)
