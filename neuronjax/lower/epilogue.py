"""The chains around a product: of its results, and of the rows of an operand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain.tile_program import Reference, TileProgram
from neuronjax.lower.values.view import View
from neuronjax.program.operand import Buffer


@dataclass
class Epilogue:
    """Element-wise operations on the result of a product: its tile is input 0 of `program`.

    `views` and `buffers` are in the order in which the program numbers its buffers.
    """

    program: TileProgram
    views: list[View]
    buffers: list[Buffer]
    operations: tuple[Op, ...]
    rows: Rows | None = None
    #: The other product of a pair, whose tile is input 1, and its dimension for each own one.
    other: Op | None = None
    axes: tuple[tuple[int, int], ...] = ()


@dataclass
class Rows:
    """The maker of a product's operand: another product, and a chain over its rows."""

    op: Op
    epilogue: Epilogue
    #: The operand that is made, without views on it: a value of the chain.
    value: Value
    reference: Reference
    #: Value of the chain -> dimension of the product's result for each of its own.
    maps: Mapping[Value, tuple[int | None, ...]]
    #: Values of the chain that are made in memory.
    read: frozenset[Value]

    @property
    def placed(self) -> tuple[int | None, ...]:
        """The dimension of the product's result for each one of the operand's."""
        return self.maps[self.value]
