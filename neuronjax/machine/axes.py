"""Sizes of mesh axes, given as a mapping or as text."""

import math
import numbers
from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.errors import TopologyError, quoted
from neuronjax.parsing import parse_whole

Axes = Mapping[str, int] | str
"""``{"data": 4, "model": 8}`` or ``"data=4,model=8"``."""

MOST_RANKS = 1 << 20
"""Most cores of a mesh: more than the largest clusters have, few enough to enumerate."""


def mesh_axes(axes: Axes) -> dict[str, int]:
    """Sizes by name, in order.

    Raises:
      TopologyError: malformed text, no axis, a size that is not a positive integer, too many cores.
    """
    sizes = _parse(axes) if isinstance(axes, str) else axes
    if not isinstance(sizes, Mapping) or not sizes:
        raise TopologyError(
            f"a mesh needs at least one axis with a size, not {quoted(axes)}; write it as "
            "{'data': 4, 'model': 8} or 'data=4,model=8'."
        )
    for name, size in sizes.items():
        if not isinstance(name, str) or not name:
            raise TopologyError(f"mesh axis {quoted(name)} has no name; names are texts.")
        if not isinstance(size, numbers.Integral) or isinstance(size, bool) or size < 1:
            raise TopologyError(
                f"mesh axis {quoted(name)} has size {quoted(size)}; it must be a positive integer, "
                "at least 1"
            )
    lengths = {name: int(size) for name, size in sizes.items()}
    total = 1
    for size in lengths.values():
        total *= size
        if total > MOST_RANKS:
            raise TopologyError(
                f"mesh {quoted(describe(lengths))} has more than {MOST_RANKS} cores; make it"
                " smaller."
            )
    return lengths


def describe(sizes: Mapping[str, int]) -> str:
    """``data=4 × model=8``."""
    return " × ".join(f"{name}={size}" for name, size in sizes.items())


def _parse(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        number = parse_whole(size)
        if not name.isidentifier() or number is None or name in sizes:
            raise TopologyError(
                f"the mesh {quoted(text)} is malformed at {quoted(part)}; write it as "
                "data=4,model=8."
            )
        sizes[name] = number
    return sizes


def axes_of(ranks: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which ranks of a row-major mesh differ; () for ranks outside it."""
    size = math.prod(mesh.values())
    if not ranks or max(ranks) >= size:
        return ()
    places = np.unravel_index(np.asarray(ranks), tuple(mesh.values()))
    return tuple(
        axis for axis, along in zip(mesh, places, strict=True) if len(np.unique(along)) > 1
    )
