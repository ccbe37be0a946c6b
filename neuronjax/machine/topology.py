"""How chips are wired: a topology is a product of axes, each a line, a ring or a switch.

Chips are numbered row-major over the axes, outermost first, so chip d of a 4×4 torus lies at
(d // 4, d % 4). Nothing about pairs of chips is stored: neighbours, distances and bandwidths follow
from coordinates.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from neuronjax.errors import TopologyError


class Wiring(enum.Enum):
    """The connection of the positions along an axis."""

    LINE = "line"  # consecutive positions
    RING = "ring"  # consecutive positions, and the last with the first
    SWITCH = "switch"  # all positions, in one hop together with every other switched axis


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a topology.

    `link_bandwidth` is bytes/s of one link: between two neighbours, or of a chip's port to the
    switch. `between_hosts` marks the axes that leave an instance.
    """

    name: str
    size: int
    wiring: Wiring
    link_bandwidth: int
    between_hosts: bool = False

    def __post_init__(self) -> None:
        minimum = 3 if self.wiring is Wiring.RING else 1
        if self.size < minimum:
            raise ValueError(f"axis {self.name!r}: a {self.wiring.value} of {self.size} positions")
        if self.size > 1 and not self.link_bandwidth:
            raise ValueError(f"axis {self.name!r}: {self.size} positions without link_bandwidth")

    def distance(self, a: int, b: int) -> int:
        """Hops between two positions of a line or ring."""
        direct = abs(a - b)
        return min(direct, self.size - direct) if self.wiring is Wiring.RING else direct

    def shift(self, position: int, step: int) -> int | None:
        """The position one `step` (−1 or +1) away; None past the end of a line."""
        shifted = position + step
        if self.wiring is Wiring.RING:
            return shifted % self.size
        return shifted if 0 <= shifted < self.size else None


@dataclass(frozen=True)
class Topology:
    """Chips and the links between them.

    `steps` is the order in which `neighbours` looks along the axes: −1 before +1, except on Inf1.
    """

    axes: tuple[Axis, ...]
    steps: tuple[int, int] = (-1, 1)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Positions along each axis, outermost first."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    def coords(self, chip: int) -> tuple[int, ...]:
        """Position of `chip` along each axis, outermost first. TopologyError: no such chip."""
        if not 0 <= chip < self.chips:
            raise TopologyError(
                f"chip {chip} does not exist: the topology {self} has chips 0 to {self.chips - 1}"
            )
        reversed_coords = []
        for size in reversed(self.shape):
            chip, position = divmod(chip, size)
            reversed_coords.append(position)
        return tuple(reversed(reversed_coords))

    def chip_at(self, coords: Sequence[int]) -> int:
        """Inverse of `coords`. TopologyError: the coordinates lie outside."""
        inside = len(coords) == len(self.shape) and all(
            0 <= position < size for position, size in zip(coords, self.shape, strict=True)
        )
        if not inside:
            raise TopologyError(f"no chip at {tuple(coords)}: the topology is {self}")
        chip = 0
        for position, size in zip(coords, self.shape, strict=True):
            chip = chip * size + position
        return chip

    def neighbours(self, chip: int) -> tuple[int, ...]:
        """Chips with a direct link to `chip`, in the order of `neuron-ls`.

        On a torus that is row − 1, column − 1, row + 1, column + 1. Chips behind the same switch
        come first, ascending; links between instances come last. TopologyError: no such chip.
        """
        coords = self.coords(chip)
        peers = [*self._switched_peers(coords)]
        for between_hosts in (False, True):
            for step in self.steps:
                peers += self._step(coords, step, between_hosts)
        return tuple(peers)

    def _step(self, coords: Sequence[int], step: int, between_hosts: bool) -> Iterator[int]:
        for index, axis in enumerate(self.axes):
            if axis.wiring is Wiring.SWITCH or axis.between_hosts is not between_hosts:
                continue
            shifted = axis.shift(coords[index], step)
            if shifted is not None:
                yield self.chip_at((*coords[:index], shifted, *coords[index + 1 :]))

    def _switched_peers(self, coords: tuple[int, ...]) -> Iterator[int]:
        """All other chips that differ from `coords` along switched axes only."""
        peers: list[tuple[int, ...]] = [()]
        for axis, position in zip(self.axes, coords, strict=True):
            choices = range(axis.size) if axis.wiring is Wiring.SWITCH else (position,)
            peers = [(*peer, choice) for peer in peers for choice in choices]
        return (self.chip_at(peer) for peer in peers if peer != coords)

    def distance(self, a: int, b: int) -> int:
        """Hops on a shortest path between two chips. TopologyError: no such chip.

        Axes add up; a switch takes one hop whatever it changes.
        """
        hops, switched = 0, 0
        for axis, from_, to in zip(self.axes, self.coords(a), self.coords(b), strict=True):
            if axis.wiring is Wiring.SWITCH:
                switched |= from_ != to
            else:
                hops += axis.distance(from_, to)
        return hops + switched

    def link_bandwidth(self, a: int, b: int) -> int:
        """Bytes/s of the direct link between two chips.

        Through switches it is the port of the outermost axis that changes. TopologyError: the chips
        have no direct link.
        """
        if self.distance(a, b) != 1:
            raise TopologyError(
                f"chips {a} and {b} have no direct link; {a} is connected to {self.neighbours(a)}"
            )
        changed = (
            axis
            for axis, from_, to in zip(self.axes, self.coords(a), self.coords(b), strict=True)
            if from_ != to
        )
        return next(changed).link_bandwidth

    @cached_property
    def path(self) -> tuple[int, ...]:
        """All chips in boustrophedon order: each has a link to the next.

        Runs of one row, two rows, one plane, … are connected, and a torus closes to a cycle.
        """
        order: list[tuple[int, ...]] = [()]
        for size in self.shape:
            order = [
                (*outer, position)
                for index, outer in enumerate(order)
                for position in (range(size) if index % 2 == 0 else reversed(range(size)))
            ]
        return tuple(self.chip_at(coords) for coords in order)

    def __str__(self) -> str:
        return " × ".join(f"{axis.name} {axis.wiring.value} of {axis.size}" for axis in self.axes)
