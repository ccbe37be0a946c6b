"""What a program's instructions cost, by kind, the line that they come from, and its layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum

from neuronjax.profiling.places import plain, users_first
from neuronjax.profiling.records import Instructions
from neuronjax.program.element_types import bytes_of
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Memory
from neuronjax.program.program import Kernel
from neuronjax.program.tensor_engine import Matmul
from neuronjax.timing.cost import Cost
from neuronjax.timing.encoding import Compiled

_OPERATORS = ("op", "op0", "op1", "function")
"""Fields that say what an instruction computes."""

_Key = tuple[str, str, str, str, tuple[str, ...], str, str]


@dataclass(slots=True)
class _Sum:
    number: int = 0
    time_ns: float = 0.0
    critical_ns: float = 0.0
    core_ns: float = 0.0
    nbytes: float = 0.0


class Account:
    """Sums over the instructions of a program's kernels."""

    def __init__(self) -> None:
        self._sums: dict[_Key, _Sum] = {}

    def add(
        self,
        kernel: Kernel,
        compiled: Compiled,
        scopes: Sequence[str],
        *,
        runs: int,
        cores: int,
        critical: str,
    ) -> None:
        """Adds the runs of a kernel on one of `cores` that share its work.

        `scopes` are those of its parts, `critical` is what limits it.
        """
        places = list(_places(kernel, scopes))
        rows = zip(compiled.instructions, compiled.costs, compiled.times, strict=True)
        for instruction, cost, times in rows:
            lane, time_ns, nbytes = _measure(instruction, cost)
            operations, source, scope = places[min(instruction.part, len(places) - 1)]
            key = (
                lane, instruction.mnemonic, _operator(instruction), _dtype(instruction),
                operations, source, scope,
            )  # fmt: skip
            total = self._sums.setdefault(key, _Sum())
            total.number += times * runs
            total.time_ns += time_ns * times * runs
            total.core_ns += time_ns * times * runs / cores
            total.critical_ns += time_ns * times * runs / cores * (lane == critical)
            total.nbytes += nbytes * times * runs

    def rows(self) -> tuple[Instructions, ...]:
        """The sums, most frequent first."""
        order = sorted(self._sums.items(), key=lambda item: -item[1].number)
        return tuple(
            Instructions(*key, *(getattr(total, field.name) for field in fields(total)))
            for key, total in order
        )


def _places(kernel: Kernel, scopes: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The operations, line and scope of each part of a kernel."""
    parts = [(part.operations, part.sources) for part in kernel.parts]
    for number, (operations, sources) in enumerate(parts or [(kernel.operations, kernel.sources)]):
        scope = scopes[number] if number < len(scopes) else ""
        yield plain(operations), next(iter(users_first(sources)), ""), scope


def _measure(instruction: Instruction, cost: Cost) -> tuple[str, float, float]:
    """The lane an instruction works on, for how long, and the bytes that it moves or writes."""
    if cost.transfer is not None:
        return "dma", cost.transfer.engine_ns, cost.transfer.nbytes
    if cost.message is not None:
        return "collective", cost.message.latency_ns + cost.message.wire_ns, cost.message.nbytes
    engine = "host" if instruction.engine is None else instruction.engine.value
    written = (access.nbytes for access in instruction.accesses())
    return engine, cost.issue_ns, next(written, 0)


def _operator(instruction: Instruction) -> str:
    """What it computes, such as ``exp``; ``transpose`` for a product that only transposes."""
    if isinstance(instruction, Matmul):
        return "transpose" if instruction.is_transpose else ""
    values = [getattr(instruction, name, None) for name in _OPERATORS]
    return " ".join(value.value for value in values if isinstance(value, Enum))


def _dtype(instruction: Instruction) -> str:
    """The widest type that it reads or writes on the chip; empty if it reads or writes PSUM."""
    accesses = [access for access in instruction.accesses() if access.memory is not Memory.HBM]
    if any(access.memory is Memory.PSUM for access in accesses):
        return ""
    widest = max(accesses, key=lambda access: bytes_of(access.element_type), default=None)
    return widest.element_type.name if widest is not None else ""
