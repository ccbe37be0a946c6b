"""The sweeps over the keys in which values of long attention are made, and what sweeps leave."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from neuronjax.lower.chain.tile_program import Reference, TileProgram, levels
from neuronjax.lower.values.storage import NARROW_FLOATS


@dataclass(frozen=True)
class Sweeps:
    """The sweeps in which the values of a chain are made, and the value each leaves to the next."""

    level: tuple[int, ...]
    reductions: tuple[int, ...]
    #: By sweep, for all but the last: a value along the keys, from which later sweeps go on.
    kept: tuple[Reference, ...]
    weights: int
    count: int

    @staticmethod
    def of(program: TileProgram, key: int, seen: Reference, weights: Reference) -> Sweeps:
        """The sweeps of a chain with rows along dimension `key` and the scores `seen`."""
        level = levels(program)
        reductions = tuple(n for n, node in enumerate(program.nodes) if node.reduced)
        along = [output.value for output in program.outputs if key in program.axes_of(output.value)]
        own = [0 if value.is_input else level[value.number] for value in (weights, *along)]
        count = max([*own, *(level[n] for n in reductions)]) + 1
        flow = _Flow(program, key, level, _following(program, {seen}))
        kept: list[Reference] = []
        for sweep in range(count - 1):
            left = flow.left_by(sweep)
            if not sweep:
                kept.append(left or seen)
            else:
                kept.append(left if left and flow.replaces(left, kept[-1], sweep) else kept[-1])
        return Sweeps(level, reductions, tuple(kept), own[0], count)


@dataclass(frozen=True)
class _Flow:
    """How the values of a chain that follow from its scores depend on each other."""

    program: TileProgram
    key: int
    level: tuple[int, ...]
    scored: Set[Reference]

    def left_by(self, sweep: int) -> Reference | None:
        """The one value along the keys that later sweeps read; None: there are several."""
        read = {
            self._source(value)
            for number, node in enumerate(self.program.nodes)
            if self.level[number] > sweep
            for value in _references(node.operands)
            if value in self.scored
            and self._level(value) <= sweep
            and self.key in self.program.axes_of(value)
        }
        return read.pop() if len(read) == 1 else None

    def _source(self, value: Reference) -> Reference:
        """The narrow value that a widened one is made from without loss; else itself."""
        node = None if value.is_input else self.program.nodes[value.number]
        if node is None or node.name != "convert" or node.dtype.name != "float32":
            return value
        (source,) = _references(node.operands) or (value,)
        is_narrow = self.program.dtype_of(source).name in NARROW_FLOATS
        return source if is_narrow and source in self.scored else value

    def _level(self, value: Reference) -> int:
        return 0 if value.is_input else self.level[value.number]

    def replaces(self, new: Reference, old: Reference, sweep: int) -> bool:
        """Whether a sweep may write a value where it reads the old one, element by element: what it
        reads of the old one leads to the new one and nowhere else."""
        if self._level(new) != sweep or self.program.dtype_of(new) != self.program.dtype_of(old):
            return False
        inside = _following(self.program, {old}) & _leading(self.program, new) | {old}
        return all(
            Reference(number) in inside or inside.isdisjoint({*_references(node.operands)} - {new})
            for number, node in enumerate(self.program.nodes)
            if self.level[number] == sweep
        )


def _following(program: TileProgram, values: Set[Reference]) -> set[Reference]:
    """Some values, and all that follow from them."""
    following = set(values)
    for number, node in enumerate(program.nodes):
        if not following.isdisjoint(_references(node.operands)):
            following.add(Reference(number))
    return following


def _leading(program: TileProgram, value: Reference) -> set[Reference]:
    """A value, and all that it follows from."""
    leading, todo = {value}, [value]
    while todo:
        last = todo.pop()
        if not last.is_input:
            new = set(_references(program.nodes[last.number].operands)) - leading
            leading |= new
            todo += new
    return leading


def _references(operands: object) -> list[Reference]:
    assert isinstance(operands, tuple)
    return [operand for operand in operands if isinstance(operand, Reference)]


@dataclass(frozen=True, slots=True)
class Room:
    """The contents of SBUF: tiles of queries, perhaps all keys and values, and rows that are kept.

    Keys and values that are not held are loaded part by part, for so many tiles of queries anew;
    what is not kept is made again in each sweep. A part has so many keys.
    """

    tiles: int
    panels: bool
    rows: bool
    part: int


def rooms(most: int, streamed_tiles: int) -> list[Room]:
    """Returns what SBUF may hold, the best first; a part has so many keys, or half as many.

    Where neither keys and values nor rows are held, `streamed_tiles` tiles of queries may share
    what is loaded. The last room is the same for any number of keys.
    """
    some_held = ((True, True), (False, True), (True, False))
    held = [(tiles, *kinds) for kinds in some_held for tiles in (2, 1)]
    held += [(tiles, False, False) for tiles in (streamed_tiles, 2, 1)]
    return [Room(*kinds, part) for part in (most, most // 2) for kinds in held]
