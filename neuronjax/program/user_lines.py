"""The user's lines in place of the paths and tensors that messages about a kernel name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from neuronjax.program.program import Program
from neuronjax.program.walk import instructions


def lines_by_path(program: Program) -> dict[str, str]:
    """Path of an instruction -> `file:line`."""
    sources = (
        (place.path, place.kernel.parts[instruction.part].sources)
        for place, instruction in instructions(program)
        if place.kernel is not None and instruction.part is not None and place.kernel.parts
    )
    return {path: lines[0] for path, lines in sources if lines}


_NAMES = re.compile(r"[^\s(]*\w(?: \d+/[^\s(]*\w)?")
"""Tensors, and paths of instructions: those of a grid's kernels have the number of a program behind
the kernel's name."""


def with_lines(message: str, lines: Mapping[str, str]) -> str:
    """The message, with the line before every path and tensor that it names, unless the line is
    behind it."""

    def named(match: re.Match[str]) -> str:
        line = lines.get(match[0])
        is_known = line is None or message.startswith(f" ({line})", match.end())
        return match[0] if is_known else f"{line}: {match[0]}"

    return _NAMES.sub(named, message)


def without_names(message: str, lines: Mapping[str, str]) -> str:
    """The message with lines in place of paths and tensors: the same for every iteration of a loop
    that is written out."""
    return _NAMES.sub(lambda match: lines.get(match[0], match[0]), message)
