"""What type checkers and editors know of the functions of `nki.isa` and `nki.language`.

Both modules find their functions in tables when a kernel uses them, so a file of declarations is
made from the same tables::

    python -m tests.nki.declarations    # renews it
"""

from __future__ import annotations

import ast
import functools
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from neuronjax.nki import building, elementwise, language, signatures
from neuronjax.nki.constants import Operator
from tests.conftest import PROJECT

FOLDER = PROJECT / "neuronjax" / "nki"
_NOTE = "`python -m tests.nki.declarations` makes this file."
_LANGUAGE = f'''"""The functions and dtypes of `nki.language`, for type checkers.

{_NOTE}
"""

from builtins import range as range
from collections.abc import Sequence

import numpy as np

from neuronjax.nki.constants import MemoryRegion, Operator
from neuronjax.nki.dtypes import DType
from neuronjax.nki.elementwise import Operand
from neuronjax.nki.reductions import Axis
from neuronjax.nki.tensor import Tensor
from neuronjax.program.element_types import ElementType

class Unary(Operator):
    """An operator that is a function of a tile as well."""
    def __call__(self, x: Tensor, dtype: DType = None) -> Tensor: ...

class Binary(Operator):
    """An operator that is a function of two tiles, or of a tile and a number, as well."""
    def __call__(self, x: Operand, y: Operand, dtype: DType = None) -> Tensor: ...

'''
_ISA = f'''"""The functions of `nki.isa`, for type checkers.

{_NOTE}
"""

from neuronjax.nki.constants import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    oob_mode,
    reduce_cmd,
)
from neuronjax.nki.scheduling import NkiInstruction

'''


def language_text() -> str:
    """The declarations of `nki.language`."""
    dtypes = "".join(f"{name}: ElementType\n" for name in language.DTYPES)
    declared = "".join(_of_language(name, value) for name, value in language.FUNCTIONS.items())
    return _formatted(f"{_LANGUAGE}{dtypes}{declared}")


def isa_text() -> str:
    """The declarations of `nki.isa`."""
    declared = "".join(
        _function(name, signatures.signature(name), building.BUILDERS[name].instruction.__doc__)
        for name in signatures.SIGNATURES
    )
    return _formatted(f"{_ISA}__all__ = {sorted(signatures.SIGNATURES)}\n\n{declared}")


def _formatted(text: str) -> str:
    words = [sys.executable, "-m", "ruff", "format", "--stdin-filename=declared.pyi", "-"]
    return subprocess.run(
        words, input=text, capture_output=True, text=True, check=True, cwd=PROJECT
    ).stdout


TEXTS: Mapping[Path, Callable[[], str]] = {
    FOLDER / "declared_language.pyi": language_text,
    FOLDER / "declared_isa.pyi": isa_text,
}


def _of_language(name: str, value: object) -> str:
    if isinstance(value, elementwise.Function):
        operands = list(inspect.signature(value.compute).parameters.values())
        kind = "Binary" if operands[1].name == "y" else "Unary"
        return f"{name}: {kind}\n"
    if isinstance(value, Operator):
        return f"{name}: Operator\n"
    assert callable(value)
    doc = None if isinstance(value, functools.partial) else value.__doc__
    return _function(name, inspect.signature(value), doc)


def _function(name: str, signature: inspect.Signature, doc: str | None) -> str:
    parameters = ", ".join(_parameters(signature))
    returns = signature.return_annotation
    result = "NkiInstruction" if returns is inspect.Signature.empty else returns
    text = "..." if doc is None else f'"""{inspect.cleandoc(doc)}\n"""'
    return f"def {name}({parameters}) -> {result}:\n{textwrap.indent(text, '    ')}\n\n"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    was_keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not was_keyword_only:
            was_keyword_only = True
            yield "*"
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = parameter.default
        if default is parameter.empty:
            yield f"{star}{parameter.name}: {_type(parameter)}"
        else:
            yield f"{parameter.name}: {_type(parameter)} = {_default(default)}"


def _type(parameter: inspect.Parameter) -> str:
    if parameter.annotation is not parameter.empty:
        return str(parameter.annotation)
    if parameter.name == "name":
        return "str | None"
    if isinstance(parameter.default, bool):
        return "bool"
    return type(parameter.default).__name__ if isinstance(parameter.default, Enum) else "object"


def _default(value: object) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return "..."
    return text


if __name__ == "__main__":
    for path, text in TEXTS.items():
        path.write_text(text())
