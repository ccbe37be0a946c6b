"""The kernels that were measured, as programs in the text form.

Sizes that a source does not give are said beside the program.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from neuronjax.program.program import Program
from neuronjax.program.text import parse

_FOLDER = Path(__file__).parent / "programs"
_TYPED = {"FP32": "float32", "BF16": "bfloat16"}
"""Suffix of a program's name -> the type of its operands."""


@functools.cache
def programs() -> Mapping[str, Program]:
    """Returns all programs by name; those whose text has a TYPE once for each type."""
    parsed: dict[str, Program] = {}
    for file in sorted(_FOLDER.glob("*.txt")):
        text = file.read_text(encoding="utf-8")
        if "TYPE[" in text:
            for suffix, dtype in _TYPED.items():
                parsed[f"{file.stem} {suffix}"] = parse(text.replace("TYPE[", f"{dtype}["))
        else:
            parsed[file.stem] = parse(text)
    return MappingProxyType(parsed)
