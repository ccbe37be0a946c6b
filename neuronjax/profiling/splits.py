"""How a mesh splits the arrays of a program: PartitionSpecs, and pictures of the tiles.

The pictures are those of ``jax.debug.visualize_array_sharding``, in the colours of the mesh.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neuronjax.machine.picture import HUES
from neuronjax.profiling.records import Array, ProgramProfile, Split

MOST_TILES = 1_024
"""The most tiles of a split that is drawn."""

MOST_NAMES = 12
"""Arrays of one split that are named, the largest."""

_WIDTH, _HEIGHT, _LEAST = 240, 120, 7
"""Pixels of a picture, and of the side of a tile."""

_LABELLED = (22, 14)
"""Pixels that a tile must have for its cores to be written in it."""

_SHARED = "var(--faint, #8b94a1)"
"""The colour of tiles that cores with several places along the mesh's first axis hold."""


def described(program: ProgramProfile) -> list[dict[str, object]]:
    """An entry for each split of a program's arrays, most bytes first.

    Splits that look alike are one: arrays of any number of dimensions can be whole on every core.
    """
    if program.ranks == 1 or not program.cores:
        return []
    looks = [_look(split, program.mesh, program.cores) for split in program.splits]
    arrays: dict[_Look, list[Array]] = {}
    for array in program.arrays:
        arrays.setdefault(looks[array.split], []).append(array)
    by_size = sorted(arrays.items(), key=lambda item: -sum(array.nbytes for array in item[1]))
    return [_entry(look, of_look) for look, of_look in by_size]


class _Look(NamedTuple):
    spec: str
    svg: str
    copies: int


def _look(split: Split, mesh: Sequence[tuple[str, int]], cores: Sequence[int]) -> _Look:
    return _Look(spec(split, mesh), svg(split, mesh, cores), len(split.ranks[0]))


def _entry(look: _Look, arrays: Sequence[Array]) -> dict[str, object]:
    largest = sorted(arrays, key=lambda array: -array.nbytes)
    return {
        **look._asdict(),
        "count": len(arrays),
        "nbytes": sum(array.nbytes for array in arrays),
        "arrays": [
            [array.name, f"{array.dtype}{list(array.shape)}", array.nbytes, array.kind]
            for array in largest[:MOST_NAMES]
        ],
    }


def spec(split: Split, mesh: Sequence[tuple[str, int]]) -> str:
    """The PartitionSpec, such as ``P('data', None)``; numbers of tiles where no axes fit."""
    if math.prod(split.tiles) == 1:
        return "P()"
    places = _places(split)
    names = [
        _axes(tiles, [place[dimension] for place in places], mesh)
        for dimension, tiles in enumerate(split.tiles)
    ]
    return f"P({', '.join(names)}{',' if len(names) == 1 else ''})"


def idle_axes(program_splits: Sequence[Split], mesh: Sequence[tuple[str, int]]) -> list[str]:
    """The axes of the mesh that split none of the arrays, so that cores along them hold the same.

    Ranks are in row-major order of the mesh.
    """
    sizes = [size for _, size in mesh]
    coordinates = list(itertools.product(*map(range, sizes)))
    placed = [_places(split) for split in program_splits]

    def is_idle(axis: int) -> bool:
        first = [_index([*at[:axis], 0, *at[axis + 1 :]], sizes) for at in coordinates]
        return all(
            places[rank] == places[twin] for places in placed for rank, twin in enumerate(first)
        )

    return [name for axis, (name, size) in enumerate(mesh) if size > 1 and is_idle(axis)]


def _places(split: Split) -> list[tuple[int, ...]]:
    """The tile of each rank, by its position along each dimension."""
    tiles = itertools.product(*map(range, split.tiles))
    place = {rank: tile for tile, ranks in zip(tiles, split.ranks, strict=True) for rank in ranks}
    return [place[rank] for rank in sorted(place)]


def _axes(tiles: int, positions: Sequence[int], mesh: Sequence[tuple[str, int]]) -> str:
    """The axes that decide on the position along a dimension, outermost first."""
    if tiles == 1:
        return "None"
    coordinates = list(itertools.product(*(range(size) for _, size in mesh)))
    if len(coordinates) == len(positions):
        split = [number for number, (_, size) in enumerate(mesh) if size > 1]
        for order in _orders(split):
            sizes = [mesh[number][1] for number in order]
            if math.prod(sizes) == tiles and all(
                position == _index([place[number] for number in order], sizes)
                for position, place in zip(positions, coordinates, strict=True)
            ):
                names = [repr(mesh[number][0]) for number in order]
                return names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{tiles} tiles"


def _orders(axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for length in range(1, len(axes) + 1):
        yield from itertools.permutations(axes, length)


def _index(place: Sequence[int], sizes: Sequence[int]) -> int:
    index = 0
    for position, size in zip(place, sizes, strict=True):
        index = index * size + position
    return index


def svg(split: Split, mesh: Sequence[tuple[str, int]], cores: Sequence[int]) -> str:
    """The tiles, each with the cores that hold it; empty if there are too many."""
    rows, columns = _grid(split.tiles)
    if rows * columns > MOST_TILES:
        return ""
    wide = max(_LEAST, min(_WIDTH / columns, 80))
    high = max(_LEAST, min(_HEIGHT / rows, 32))
    inner = math.prod(size for _, size in mesh[1:])
    cells = [
        _tile(
            [cores[rank] for rank in ranks],
            {rank // inner for rank in ranks},
            (number % columns * wide, number // columns * high),
            (wide, high),
        )
        for number, ranks in enumerate(split.ranks)
    ]
    width, height = columns * wide, rows * high
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{rows} by {columns} tiles" style="width:{width:g}px" '
        f'font-family="system-ui, sans-serif" font-size="11">{"".join(cells)}</svg>'
    )


def _grid(tiles: Sequence[int]) -> tuple[int, int]:
    """Rows and columns: the last dimension that is split lies across, the others lie down."""
    split = [dimension for dimension, count in enumerate(tiles) if count > 1]
    if not split or (len(split) == 1 and split[0] < len(tiles) - 1):
        return math.prod(tiles), 1
    return math.prod(tiles[: split[-1]]), tiles[split[-1]]


def _tile(
    cores: Sequence[int], places: set[int], corner: tuple[float, float], side: tuple[float, float]
) -> str:
    """A tile; ``places`` are those of its cores along the first axis."""
    (x, y), (wide, high) = corner, side
    hue = HUES[min(places) % len(HUES)]
    fill = f"hsl({hue} 55% 52%)" if len(places) == 1 else _SHARED
    text = _numbers(cores)
    is_labelled = wide >= max(_LABELLED[0], 7 * len(text)) and high >= _LABELLED[1]
    label = (
        f'<text x="{x + wide / 2:g}" y="{y + high / 2 + 4:g}" text-anchor="middle" '
        f'style="fill:#fff">{text}</text>'
        if is_labelled
        else ""
    )
    return (
        f'<g class="shard"><title>on {"core" if len(cores) == 1 else "cores"} '
        f"{', '.join(map(str, cores))}</title>"
        f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{wide - 1:g}" height="{high - 1:g}" rx="2" '
        f'fill="{fill}" fill-opacity="0.9"/>{label}</g>'
    )


def _numbers(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores)) if len(cores) <= 4 else f"{cores[0]}…{cores[-1]}"
