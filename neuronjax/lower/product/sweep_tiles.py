"""Tiles of long attention: those of some queries, and those that parts of the keys have in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.lower.chain.box_values import Values
from neuronjax.lower.chain.boxes import Axis
from neuronjax.lower.chain.tile_program import Reference
from neuronjax.lower.product.attention_rows import BANKS, Turned, Work
from neuronjax.lower.product.blocking import STATIONARY
from neuronjax.lower.product.panels import Panel
from neuronjax.lower.write.builder import KernelBuilder, tile_access
from neuronjax.program.affine import Affine
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Access, Buffer

CHUNK = 1024
"""Keys at a time: enough that starting an instruction costs little beside what it does."""


@dataclass
class Rows:
    """Some queries on their way through the sweeps."""

    work: Work
    queries: list[Panel]
    #: What the chain reads of memory and is the same for all keys.
    inputs: dict[Reference, Access]
    #: Values of all keys that later sweeps read.
    kept: Buffer | None
    tops: Buffer | None
    #: Sums of products.
    sums: Access
    turns: Turns
    totals: dict[Reference, Access] = field(default_factory=dict)
    #: Weights that wait to be turned, and turned ones that wait for their product: engines are busy
    #: with different parts of the keys at a time.
    weights: list[tuple[Access, list[Panel], Axis]] = field(default_factory=list)
    turned: list[tuple[list[Turned], list[Panel], Axis]] = field(default_factory=list)


@dataclass
class Turns:
    """Tiles that parts of the keys have in turn: one is filled while another one is read."""

    builder: KernelBuilder
    buffers: dict[tuple[int, int], Buffer] = field(default_factory=dict)

    def tile(
        self, kind: tuple[int, int], shape: tuple[int, int], dtype: ElementType, name: str
    ) -> Buffer:
        """The tile of a kind: the sweep, and its number there."""
        if kind not in self.buffers:
            self.buffers[kind] = self.builder.tile(shape, dtype, slots=BANKS, name=name)
        return self.buffers[kind]


@dataclass
class ChunkValues(Values):
    """Values of one part of the keys."""

    turns: Turns = field(kw_only=True)
    sweep: int = 0
    number: int = 0
    count: int = 0

    def tile(self, axes: frozenset[int], dtype: ElementType, name: str, slots: int = 1) -> Access:
        """A tile of those that take turns."""
        sizes = [axis.size for axis in self.box.free if axis.dim in axes]
        kind = self.sweep, self.count
        self.count += 1
        shape = STATIONARY, CHUNK if sizes else 1
        buffer = self.turns.tile(kind, shape, dtype, name)
        slot = Affine(self.number % BANKS)
        return tile_access(buffer, sizes, [1] * len(sizes), partitions=self.box.count, slot=slot)
