"""In which sweep over the keys values of long attention are made, and what of them SBUF holds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from neuronjax.lower.chain.tile_program import Reference, TileProgram, levels
from neuronjax.lower.values.storage import storage_of
from neuronjax.program.element_types import bytes_of


@dataclass(frozen=True)
class Sweeps:
    """In which sweep the values of a chain are made, and which value later sweeps begin with."""

    level: tuple[int, ...]
    reductions: tuple[int, ...]
    kept: Reference
    weights: int
    count: int

    @staticmethod
    def of(program: TileProgram, key: int, seen: Reference, weights: Reference) -> Sweeps:
        """Those of a chain whose rows run along dimension `key` and whose scores are `seen`."""
        level = levels(program)
        scored: set[Reference] = {seen}
        for number, node in enumerate(program.nodes):
            if not scored.isdisjoint(
                value for value in node.operands if isinstance(value, Reference)
            ):
                scored.add(Reference(number))

        def of(reference: Reference) -> int:
            return 0 if reference.is_input else level[reference.number]

        read = {
            operand
            for number, node in enumerate(program.nodes)
            if level[number]
            for operand in node.operands
            if isinstance(operand, Reference)
        } | {weights}
        early = {
            value for value in read & scored if not of(value) and key in program.axes_of(value)
        }
        reductions = tuple(n for n, node in enumerate(program.nodes) if node.reduced)
        along = [output.value for output in program.outputs if key in program.axes_of(output.value)]
        last = max([of(weights), *map(of, along), *(level[n] for n in reductions)])
        return Sweeps(
            level=level,
            reductions=reductions,
            kept=early.pop() if len(early) == 1 else seen,
            weights=of(weights),
            count=last + 1,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """What SBUF has room for: two tiles of queries, all keys and values, rows of what is kept."""

    pair: bool
    panels: bool
    rows: bool


ROOMS = (
    Room(True, True, True), Room(False, True, True), Room(True, False, True),
    Room(False, False, True), Room(True, False, False),
)  # fmt: skip
"""The best first."""


@dataclass(frozen=True)
class Along:
    """The values of a chain that vary along the keys."""

    program: TileProgram
    #: The dimension of the keys.
    dim: int
    #: What the first sweep leaves to later ones.
    kept: Reference
    #: Values that need no tile of their own.
    absorbed: Set[int]

    def made_by_key(self) -> list[int]:
        """Bytes for each key of what a sweep makes beside what is kept."""
        nodes = [
            Reference(number)
            for number, node in enumerate(self.program.nodes)
            if self.dim in node.axes and number not in self.absorbed
        ]
        return [bytes_in_tile(self.program, value) for value in nodes if value != self.kept]

    def same_for_all(self) -> list[Reference]:
        """Inputs of the chain that vary along keys only: positions, for instance."""
        return [value for value in self._inputs() if self.program.axes_of(value) == {self.dim}]

    def by_row(self) -> list[Reference]:
        """Inputs of the chain that vary along queries and keys: a mask, for instance."""
        return [value for value in self._inputs() if self.program.axes_of(value) != {self.dim}]

    def _inputs(self) -> list[Reference]:
        return [
            Reference(number, is_input=True)
            for number, source in enumerate(self.program.inputs)
            if source.buffer is not None and self.dim in source.axes
        ]


def bytes_in_tile(program: TileProgram, value: Reference) -> int:
    """Bytes of an element of a value in a tile."""
    return bytes_of(storage_of(program.dtype_of(value)).dtype)
