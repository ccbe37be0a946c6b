"""What a rule finds in one run of a program, and how it is put into words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePath

from neuronjax.profiling.records import Instructions, KernelProfile, MachineFacts, ProgramProfile

TITLES = {
    "tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync",
    "dma": "DMA", "collective": "Collectives", "host": "Host",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """`ns` is the most that its removal saves in a run; `kernel` and `source` have most of it."""

    ns: float
    what: str
    remedy: str
    kernel: str = ""
    source: str = ""


Rule = Callable[[ProgramProfile, MachineFacts], Cause | None]


def line(source: str) -> str:
    """A line of the user's, with the last folder of its path."""
    return "/".join(PurePath(source).parts[-2:])


def instruction(row: Instructions) -> str:
    """An instruction by name, with what it computes."""
    return f"{row.opcode} ({row.operator})" if row.operator else row.opcode


def place(row: Instructions) -> str:
    """The layer and line that instructions come from, as far as these are known."""
    layer = f" in {row.scope.rpartition('/')[2]}" if row.scope else ""
    return layer + (f" at {line(row.source)}" if row.source else "")


def costliest(kernels: Iterable[tuple[float, KernelProfile]]) -> KernelProfile | None:
    """The kernel with the greatest number beside it."""
    return max(kernels, key=lambda pair: pair[0], default=(0.0, None))[1]


def saved(kernel: KernelProfile) -> float:
    """What all runs of a kernel could save if what limits it had nothing to do.

    Others remain busy, and waiting that is not this resource's work remains, too.
    """
    busy = kernel.busy_ns.get(kernel.critical, 0.0)
    others = [ns for name, ns in kernel.busy_ns.items() if name != kernel.critical]
    return min(busy, max(0.0, kernel.added_ns - max(others, default=0.0))) * kernel.runs


def merged(rows: Iterable[Instructions]) -> list[Instructions]:
    """Rows that differ only in types and operations as one, those that cost most first."""
    sums: dict[tuple[str, ...], Instructions] = {}
    for row in rows:
        key = (row.engine, row.opcode, row.operator, row.source, row.scope)
        known = sums.get(key)
        if known is None:
            sums[key] = row
            continue
        most = max(known, row, key=lambda row: row.critical_ns)
        sums[key] = most._replace(
            number=known.number + row.number,
            time_ns=known.time_ns + row.time_ns,
            core_ns=known.core_ns + row.core_ns,
            critical_ns=known.critical_ns + row.critical_ns,
            nbytes=known.nbytes + row.nbytes,
        )
    return sorted(sums.values(), key=lambda row: -row.critical_ns)
