"""Tiles and registers are written before they are read, in program order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from neuronjax.program.affine import Interval
from neuronjax.program.operand import Access, Register
from neuronjax.program.program import Program
from neuronjax.program.rules.sampling import (
    Area,
    Decided,
    Executed,
    Key,
    Keys,
    Passed,
    areas,
    sampled,
)
from neuronjax.program.rules.site import Violation
from neuronjax.program.tensor_engine import Matmul, MatmulMX

_RUNS = 64
_Written = defaultdict[Key, dict[Area, None]]


def uninitialised(program: Program) -> Iterator[Violation]:
    """No tile is read where nothing has been written (NKI simulator: such values are arbitrary).

    Tiles that intentionally share memory with others are not checked.
    """
    shared = {name for alias in program.aliases for name in (alias.buffer, alias.of)}
    written: _Written = defaultdict(dict)
    keys = Keys()
    reported: set[tuple[str, str]] = set()
    for step in sampled(program):
        if isinstance(step, Passed):
            for place, instruction in step.inner:
                _write(Executed(place, instruction, step.values), written, keys)
        elif isinstance(step, Executed):
            for name, buffer in _missing(step, written, keys):
                if buffer not in shared and (step.place.path, name) not in reported:
                    reported.add((step.place.path, name))
                    actual = f"{name} reads {buffer} where nothing has been written"
                    yield Violation(step.place.path, actual, "a write before it")
            _write(step, written, keys)


def _write(step: Executed, written: _Written, keys: Keys) -> None:
    """Notes the areas of tiles that an instruction writes."""
    for use in step.instruction.uses():
        access = use.operand
        if use.role.is_write and isinstance(access, Access) and access.buffer.on_chip:
            covered = areas(access, step.values, step.place.trips, _RUNS)[1]
            known = written[keys.of(step.place, access.buffer)]
            for area in covered:
                known[area] = None


def _missing(step: Executed, written: _Written, keys: Keys) -> Iterator[tuple[str, str]]:
    """Fields that read unwritten elements, and the names of their tiles."""
    for use in step.instruction.uses():
        access = use.operand
        if not isinstance(access, Access) or not access.buffer.on_chip:
            continue
        if not use.role.is_read or use.unless is not False or _accumulates(step, use.field):
            continue
        exact, wanted = areas(access, step.values, step.place.trips, _RUNS)
        known = written[keys.of(step.place, access.buffer)]
        if exact and not all(_is_covered(area, known) for area in wanted):
            yield use.field, access.buffer.name


def _accumulates(step: Executed, field: str) -> bool:
    """Whether a product accumulates in PSUM, which the rule `accumulation` checks."""
    return field == "dst" and isinstance(step.instruction, Matmul | MatmulMX)


def _is_covered(wanted: Area, known: dict[Area, None]) -> bool:
    """Whether areas together cover another one; compares strips of partitions."""
    if wanted in known:
        return True
    near = [area for area in known if area.meets(wanted)]
    low, high = wanted.partitions
    edges = {low, high + 1}
    for area in near:
        edges |= {area.partitions.low, area.partitions.high + 1}
    strips = sorted(edge for edge in edges if low <= edge <= high + 1)
    return all(
        _covers(
            [a.elements for a in near if a.partitions.low <= strip <= a.partitions.high],
            wanted.elements,
        )
        for strip in strips[:-1]
    )


def _covers(intervals: list[Interval], wanted: Interval) -> bool:
    reached = wanted.low
    for low, high in sorted(intervals):
        if low > reached:
            return False
        reached = max(reached, high + 1)
        if reached > wanted.high:
            return True
    return False


def registers(program: Program) -> Iterator[Violation]:
    """A register is written before it is read by an instruction, loop or condition."""
    written: set[str] = set()
    reported: set[tuple[str, str]] = set()
    for step in sampled(program):
        if isinstance(step, Passed):
            continue
        if isinstance(step, Executed) and not step.instruction.registers():
            continue
        read = [step.register] if isinstance(step, Decided) else step.instruction.reads()
        for register in read:
            if not isinstance(register, Register) or register.name in written:
                continue
            if (step.place.path, register.name) not in reported:
                reported.add((step.place.path, register.name))
                yield Violation(step.place.path, f"reads ${register.name}", "a write before it")
        if isinstance(step, Executed):
            names = (
                register.name
                for register in step.instruction.writes()
                if isinstance(register, Register)
            )
            written.update(names)
