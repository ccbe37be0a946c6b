"""A machine as a picture: chips, their cores, the links, and what a mesh and its traffic put there.

SVG without anything else: text takes the colour of its surroundings, and other colours are CSS
variables with values of their own, so it fits a page in light and dark as well as a notebook.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import product
from typing import Protocol

from neuronjax.display import nbytes as shown
from neuronjax.machine.topology import Axis, Topology, Wiring

CORE, SPACE, GAP, PLANE_GAP, MARGIN = 26, 8, 44, 70, 40
"""Pixels: side of a core, space around it, between chips, between planes, and around all."""

MOST_IN_A_ROW = 6
"""Chips of a topology of one axis; more are folded into two rows."""

MOST_PLANES_IN_A_ROW = 4

HUES = (212, 158, 38, 335, 262, 6, 190, 90, 300, 20, 130, 240)
"""Hues of the cores, by the first mesh coordinate."""

_CORE_COLOUR, _IDLE = "hsl({hue} 55% 52%)", "var(--faint, #8b94a1)"
_LINK, _BUSY = "var(--faint, #8b94a1)", "var(--collective, #d9493f)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """What the picture shows besides the machine.

    Cores and chips beyond those of a machine are on further ones of its kind.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the mesh by axis."""
    cores: Sequence[int] = ()
    """Core of each rank, in row-major order of the mesh."""
    traffic: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Bytes over each link of a step, both directions."""


class Drawable(Protocol):
    """What the picture needs of a machine."""

    @property
    def topology(self) -> Topology:
        """How its chips are wired."""

    @property
    def cores_per_chip(self) -> int:
        """Logical cores of one chip."""


def svg(machine: Drawable, placement: Placement | None = None, number: int = 0) -> str:
    """The picture of a machine, or of that `number` among several, all chips of which are shown."""
    return _Picture(machine, placement or Placement(), number).svg()


def machines_in_use(machine: Drawable, placement: Placement) -> list[int]:
    """The numbers of the machines that cores of a placement lie on."""
    cores = machine.topology.chips * machine.cores_per_chip
    return sorted({core // cores for core in placement.cores})


class _Picture:
    def __init__(self, machine: Drawable, placement: Placement, number: int) -> None:
        self.machine, self.placement = machine, placement
        topology = machine.topology
        self.first_chip = number * topology.chips
        self.inner = min(2, len(topology.axes))
        shape = topology.shape
        self.is_folded = self.inner == 1 and shape[-1] > MOST_IN_A_ROW
        self.rows = shape[-2] if self.inner == 2 else 1 + self.is_folded
        self.columns = math.ceil(shape[-1] / 2) if self.is_folded else shape[-1]
        self.outer = shape[: -self.inner]
        self.across = math.ceil(math.sqrt(machine.cores_per_chip))
        self.side = self.across * (CORE + SPACE) + SPACE
        self.down = math.ceil(machine.cores_per_chip / self.across) * (CORE + SPACE) + SPACE + 14
        self.planes = math.prod(self.outer)
        self.in_a_row = min(self.planes, MOST_PLANES_IN_A_ROW)
        self.most = max(placement.traffic.values(), default=0.0)
        self.names = self._coordinates()

    def _coordinates(self) -> dict[int, tuple[int, ...]]:
        sizes = tuple(self.placement.axes.values())
        places = product(*map(range, sizes))
        return dict(zip(self.placement.cores, places, strict=False)) if sizes else {}

    def svg(self) -> str:
        plane = self.columns * (self.side + GAP) - GAP, self.rows * (self.down + GAP) - GAP
        self.plane = plane
        rows = math.ceil(self.planes / self.in_a_row)
        width = self.in_a_row * (plane[0] + PLANE_GAP) - PLANE_GAP + 2 * MARGIN
        height = rows * (plane[1] + PLANE_GAP) - PLANE_GAP + 2 * MARGIN
        parts = [*self._links(), *self._chips()]
        title = f"Chips and links of {self.machine}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}" style="max-width:{width}px;width:100%" '
            f'font-family="system-ui, sans-serif" font-size="11">{"".join(parts)}</svg>'
        )

    def corner(self, chip: int) -> tuple[float, float]:
        """Upper left corner of a chip."""
        coords = self.machine.topology.coords(chip)
        plane = 0
        for position, size in zip(coords[: -self.inner], self.outer, strict=True):
            plane = plane * size + position
        row, column = (0, *coords)[-2:]
        if self.is_folded and column >= self.columns:  # the way back
            row, column = 1, self.machine.topology.shape[-1] - 1 - column
        down, across = divmod(plane, self.in_a_row)
        return (
            MARGIN + across * (self.plane[0] + PLANE_GAP) + column * (self.side + GAP),
            MARGIN + down * (self.plane[1] + PLANE_GAP) + row * (self.down + GAP),
        )

    def middle(self, chip: int) -> tuple[float, float]:
        x, y = self.corner(chip)
        return x + self.side / 2, y + self.down / 2

    def _chips(self) -> Iterator[str]:
        for chip in range(self.machine.topology.chips):
            x, y = self.corner(chip)
            yield (
                f'<g class="chip"><rect x="{x}" y="{y}" width="{self.side}" height="{self.down}" '
                'rx="7" fill="var(--card, #fff)" stroke="var(--line, #c5ccd6)"/>'
                f'<text x="{x + SPACE}" y="{y + 13}" fill="currentColor">'
                f"chip {self.first_chip + chip}</text>"
            )
            first = (self.first_chip + chip) * self.machine.cores_per_chip
            for number in range(self.machine.cores_per_chip):
                yield self._core(first + number, number, x, y + 14)
            yield "</g>"

    def _core(self, core: int, number: int, x: float, y: float) -> str:
        down, across = divmod(number, self.across)
        left, top = x + SPACE + across * (CORE + SPACE), y + SPACE + down * (CORE + SPACE)
        place = self.names.get(core)
        is_used = place is not None or core in self.placement.cores
        hue = HUES[(place[0] if place else 0) % len(HUES)]
        fill = _CORE_COLOUR.format(hue=hue) if is_used else _IDLE
        where = ", ".join(
            f"{name} {at}" for name, at in zip(self.placement.axes, place or (), strict=False)
        )
        label = ",".join(map(str, place)) if place else str(core)
        words = where or ("used" if is_used else "not in the mesh" if self.names else "")
        return (
            f'<g class="core" data-core="{core}"><title>core {core}'
            f"{escape(f': {words}' if words else '')}</title>"
            f'<rect x="{left}" y="{top}" width="{CORE}" height="{CORE}" rx="4" fill="{fill}" '
            f'fill-opacity="{0.9 if is_used or not self.names else 0.25}"/>'
            f'<text x="{left + CORE / 2}" y="{top + CORE / 2 + 4}" text-anchor="middle" '
            f'style="fill:#fff" font-size="{10 if len(label) < 5 else 7.5}">'
            f"{','.join(map(str, place)) if place else core}</text></g>"
        )

    def _links(self) -> Iterator[str]:
        topology = self.machine.topology
        for number, axis in enumerate(topology.axes):
            if axis.size > 1:
                yield from (
                    self._bus(number, axis)
                    if axis.wiring is Wiring.SWITCH
                    else self._wires(number, axis)
                )

    def _wires(self, number: int, axis: Axis) -> Iterator[str]:
        topology = self.machine.topology
        for chip in range(topology.chips):
            coords = topology.coords(chip)
            step = axis.shift(coords[number], 1)
            if step is None:
                continue
            other = topology.chip_at((*coords[:number], step, *coords[number + 1 :]))
            closes = step < coords[number]
            yield self._wire(chip, other, number, axis, closes=closes)

    def _wire(self, a: int, b: int, number: int, axis: Axis, *, closes: bool) -> str:
        ends = sorted((self.first_chip + a, self.first_chip + b))
        nbytes = self.placement.traffic.get((ends[0], ends[1]), 0.0)
        (x1, y1), (x2, y2) = self.middle(a), self.middle(b)
        inner = len(self.machine.topology.axes) - number
        bend = 0.0
        if closes and inner <= 2 and not self.is_folded:  # round the row or the column
            bend = (self.down if inner == 1 else self.side) / 2 + 22
        elif inner > 2:
            bend = 46.0 if closes else 26.0
        kind = "wrap" if closes else "link"
        return self._path((x1, y1), (x2, y2), bend, nbytes, f"{axis.name}, {kind}", *ends)

    def _path(
        self, start: tuple[float, float], end: tuple[float, float], bend: float, nbytes: float,
        kind: str, a: int, b: int,
    ) -> str:  # fmt: skip
        (x1, y1), (x2, y2) = start, end
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        over, up = (y2 - y1) / length * bend * 1.35, -(x2 - x1) / length * bend * 1.35
        if x1 > x2 or y1 > y2:
            over, up = -over, -up
        curve = f"C{x1 + over} {y1 + up} {x2 + over} {y2 + up} {x2} {y2}" if bend else f"L{x2} {y2}"
        share = nbytes / self.most if self.most else 0.0
        colour, wide = (_BUSY, 1.5 + 5 * share) if nbytes else (_LINK, 1.5)
        note = f"chips {a} and {b} ({kind})" + (f": {shown(nbytes)} a step" if self.most else "")
        line = (
            f'<path class="{kind.rsplit(" ", 1)[-1]}" data-link="{min(a, b)}-{max(a, b)}" '
            f'data-bytes="{nbytes:.0f}" d="M{x1} {y1}{curve}" fill="none" stroke="{colour}" '
            f'stroke-width="{wide:.2f}" stroke-opacity="{0.9 if nbytes or not self.most else 0.4}">'
            f"<title>{escape(note)}</title></path>"
        )
        if not nbytes or self.planes > 1:
            return line
        x, y = (x1 + x2) / 2 + over * 0.75, (y1 + y2) / 2 + up * 0.75
        return (
            f'{line}<text x="{x}" y="{y - 4}" text-anchor="middle" fill="currentColor" '
            'paint-order="stroke" stroke="var(--card, #fff)" stroke-width="3">'
            f"{shown(nbytes)}</text>"
        )

    def _bus(self, number: int, axis: Axis) -> Iterator[str]:
        """A switch is a line to which each chip has a port; what the port carries is summed up."""
        topology = self.machine.topology
        for first in range(topology.chips):
            coords = topology.coords(first)
            if coords[number]:
                continue
            chips = [
                topology.chip_at((*coords[:number], at, *coords[number + 1 :]))
                for at in range(axis.size)
            ]
            (x1, y1), (x2, y2) = self.middle(chips[0]), self.middle(chips[-1])
            is_row = y1 == y2
            off = (self.down if is_row else self.side) / 2 + 14
            ends = (x1, y1 - off, x2, y2 - off) if is_row else (x1 - off, y1, x2 - off, y2)
            yield (
                f'<line class="switch" x1="{ends[0]}" y1="{ends[1]}" x2="{ends[2]}" y2="{ends[3]}" '
                f'stroke="{_LINK}" stroke-width="5" stroke-linecap="round">'
                f"<title>{escape(axis.name)} switch of {axis.size}</title></line>"
            )
            for chip in chips:
                x, y = self.middle(chip)
                to = (x, y - off) if is_row else (x - off, y)
                nbytes = _port_bytes(self.placement, topology, self.first_chip + chip, number)
                yield self._port(self.first_chip + chip, (x, y), to, nbytes)

    def _port(
        self, chip: int, start: tuple[float, float], end: tuple[float, float], nbytes: float
    ) -> str:
        share = nbytes / self.most if self.most else 0.0
        colour, wide = (_BUSY, 1.5 + min(6.0, 5 * share)) if nbytes else (_LINK, 1.5)
        note = f"port of chip {chip}" + (f": {shown(nbytes)} a step" if self.most else "")
        return (
            f'<line class="port" data-bytes="{nbytes:.0f}" x1="{start[0]}" y1="{start[1]}" '
            f'x2="{end[0]}" y2="{end[1]}" stroke="{colour}" stroke-width="{wide:.2f}">'
            f"<title>{escape(note)}</title></line>"
        )


def _port_bytes(placement: Placement, topology: Topology, chip: int, number: int) -> float:
    """What a chip sends through the switch of an axis, the outermost that changes."""
    here, total = topology.coords(chip % topology.chips), 0.0
    for link, nbytes in placement.traffic.items():
        if chip in link:
            there = topology.coords((link[0] if link[1] == chip else link[1]) % topology.chips)
            changed = [at for at, (a, b) in enumerate(zip(here, there, strict=True)) if a != b]
            total += nbytes if changed and changed[0] == number else 0.0
    return total
