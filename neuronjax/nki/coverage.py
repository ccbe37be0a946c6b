"""Results that a kernel does not write, or not all of them, as far as addresses are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuronjax.nki.tracing import Trace
from neuronjax.program.affine import Interval
from neuronjax.program.footprint import footprint
from neuronjax.program.operand import Access, Buffer

_MOST_RUNS = 10_000
"""Runs of elements that are put together."""


def unwritten(traces: Sequence[Trace], results: Sequence[Buffer]) -> Iterator[str]:
    """What to say about results that are not written, or not all of them."""
    viewed = {of for trace in traces for _, of in trace.aliases.values()}
    known = {buffer.name: buffer for buffer in results if buffer.name not in viewed}
    written: dict[str, list[Access]] = {name: [] for name in known}
    for trace in traces:
        for instruction in trace.instructions:
            for access in instruction.writes():
                if isinstance(access, Access) and access.buffer.name in written:
                    written[access.buffer.name].append(access)
    for name, accesses in written.items():
        missing, size = _missing(known[name], accesses), known[name].elements
        if missing:
            place = traces[0].declared[name]
            yield f"{place}: {missing} of {size} elements of this result are never written."


def _missing(result: Buffer, accesses: Sequence[Access]) -> int:
    """How many elements none of the accesses writes; 0 where that is not known."""
    runs: list[Interval] = []
    for access in dict.fromkeys(accesses):
        touched = footprint(access, {})
        more = None if touched.elements is None else touched.elements.runs(_MOST_RUNS - len(runs))
        if more is None or access.registers:
            return 0
        runs += more
    reached = covered = 0
    for low, high in sorted(runs):
        covered += max(0, high + 1 - max(low, reached))
        reached = max(reached, high + 1)
    return result.elements - covered
