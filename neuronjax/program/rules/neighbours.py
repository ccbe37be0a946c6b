"""Kernels that run while those before them do: what they share is in order.

Source: Neuron docs, "Trainium/Inferentia2 architecture guide", engines synchronise by semaphores.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.program.instruction import After
from neuronjax.program.neighbours import (
    NEVER,
    Moment,
    Neighbours,
    moment,
    outside_registers,
)
from neuronjax.program.printer import print_after
from neuronjax.program.program import Program, Split
from neuronjax.program.rules.site import Violation
from neuronjax.program.walk import compounds, instructions, kernels


def overlaps(program: Program) -> Iterator[Violation]:
    """Instructions come after kernels that may still run; kernels beside each other overlap as
    many; what overlaps others reads no register of theirs."""
    for place, kernel in kernels(program):
        if kernel.overlaps < 0:
            yield Violation(place.path, f"overlaps {kernel.overlaps}", "at least 0")
        outside = outside_registers(kernel) if kernel.overlaps else ()
        for name in sorted(outside):
            yield Violation(
                place.path, f"reads ${name} of a kernel that it overlaps", "other registers"
            )
    for place, instruction in instructions(program):
        if not instruction.after:
            continue
        most = place.kernel.overlaps if place.kernel else 0
        for after in instruction.after:
            if not 1 <= after.back <= most:
                actual = f"@{after.stream} - {after.back} in a kernel that overlaps {most}"
                yield Violation(place.path, actual, f"1 to {most}")
            if after.left < 0:
                yield Violation(place.path, f"@{after.stream} but {after.left}", "at least 0")
    for place, node in compounds(program):
        if isinstance(node, Split) and len({kernel.overlaps for kernel in node.kernels}) > 1:
            yield Violation(
                place.path, "kernels overlap different numbers of kernels", "the same number"
            )


def ordered(program: Program) -> Iterator[Violation]:
    """What touches memory of a kernel before that may still run comes after its streams there."""
    most = max((kernel.overlaps for _, kernel in kernels(program)), default=0)
    if not most:
        return
    paths = {id(kernel): place.path for place, kernel in kernels(program)}
    neighbours = Neighbours(program)
    for kernel, core, conflicts in neighbours.conflicts(most):
        known: dict[str, dict[str, Moment]] = {}
        for position, touched in enumerate(neighbours.usage(kernel).instructions):
            seen = known.setdefault(touched.engine, {})
            for after in touched.instruction.after:
                seen[after.stream] = min(moment(after), seen.get(after.stream, NEVER))
            for stream, wanted in touched.comes_after(conflicts, core).items():
                if wanted.back <= kernel.overlaps and seen.get(stream, NEVER) > wanted:
                    actual = (
                        f"instruction {position}, {touched.instruction.mnemonic}, touches what"
                        f" {stream} does {wanted.back} kernels before"
                    )
                    text = print_after(After(stream, *wanted))
                    yield Violation(paths[id(kernel)], actual, f"after=({text})")
