"""Accumulation groups: products that accumulate in the same area of PSUM.

Source: NKI ISA nc_matmul, accumulation mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from neuronjax.program.instruction import Role, Use
from neuronjax.program.operand import Access, Memory
from neuronjax.program.program import Program
from neuronjax.program.rules.sampling import Area, Executed, Key, Keys, Passed, areas, sampled
from neuronjax.program.rules.site import Violation
from neuronjax.program.tensor_engine import Matmul, MatmulMX

_OPEN, _CLOSED, _FOREIGN, _SOMETIMES = "open", "closed", "foreign", "sometimes"


@dataclass(slots=True)
class _Group:
    """The state of an area of a tile of PSUM."""

    area: Area
    state: str
    path: str


_Tiles = defaultdict[Key, list[_Group]]


def accumulation(program: Program) -> Iterator[Violation]:
    """The first product of a group overwrites, nothing reads before the last, every group ends."""
    tiles: _Tiles = defaultdict(list)
    keys = Keys()
    seen: set[tuple[str, str]] = set()
    for step in sampled(program):
        if isinstance(step, Passed):
            for where, group in _sometimes(step, keys):
                tiles[where].append(group)
        elif isinstance(step, Executed):
            for actual, allowed in _executed(step, tiles, keys, program.target.core.version):
                if (step.place.path, actual) not in seen:
                    seen.add((step.place.path, actual))
                    yield Violation(step.place.path, actual, allowed)
    for group in chain.from_iterable(tiles.values()):
        if group.state == _OPEN and (group.path, "") not in seen:
            seen.add((group.path, ""))
            yield Violation(group.path, "a group that never ends", "stop on its last product")


def _sometimes(step: Passed, keys: Keys) -> Iterator[tuple[Key, _Group]]:
    for place, instruction in step.inner:
        if isinstance(instruction, Matmul | MatmulMX):
            for area in areas(instruction.dst, step.values, place.trips, 1)[1]:
                where = keys.of(place, instruction.dst.buffer)
                yield where, _Group(area, _SOMETIMES, place.path)


def _executed(step: Executed, tiles: _Tiles, keys: Keys, version: int) -> Iterator[tuple[str, str]]:
    for use in step.instruction.uses():
        if not isinstance(use.operand, Access) or use.operand.memory is not Memory.PSUM:
            continue
        groups = tiles[keys.of(step.place, use.operand.buffer)]
        for area in areas(use.operand, step.values, step.place.trips, 1)[1]:
            overlapping = [group for group in groups if group.area.meets(area)]
            if isinstance(step.instruction, Matmul | MatmulMX):
                yield from _product(step, step.instruction, area, overlapping, groups, version)
            else:
                yield from _check_use(step, use, area, overlapping, groups)


def _product(
    step: Executed,
    product: Matmul | MatmulMX,
    area: Area,
    overlapping: list[_Group],
    groups: list[_Group],
    version: int,
) -> Iterator[tuple[str, str]]:
    state = _CLOSED if step.holds(product.stop) else _OPEN
    if step.holds(product.start):
        if any(group.state == _OPEN for group in overlapping):
            yield "a group starts before the last one ended", "stop on a group's last product"
    else:
        if not overlapping:
            yield "a product is added to unwritten PSUM", "start on the first product"
        if version < 4 and any(group.state == _FOREIGN for group in overlapping):
            yield "a product is added to another instruction's data", "start on the first product"
    _replace(
        groups,
        overlapping,
        _Group(area, state, step.place.path),
    )


def _check_use(
    step: Executed, use: Use, area: Area, overlapping: list[_Group], groups: list[_Group]
) -> Iterator[tuple[str, str]]:
    if any(group.state == _OPEN for group in overlapping):
        yield f"{use.field} touches an unfinished group", "stop on a group's last product"
    if use.role is not Role.READ and isinstance(use.operand, Access):
        _replace(groups, overlapping, _Group(area, _FOREIGN, step.place.path))


def _replace(groups: list[_Group], old: list[_Group], new: _Group) -> None:
    """Replaces overlapping groups by a new one, but keeps those that loops write in between."""
    gone = {id(group) for group in old if group.state != _SOMETIMES}
    groups[:] = [group for group in groups if id(group) not in gone]
    groups.append(new)
