"""Replica groups as HLO text writes them, and reading them off a partitioned module.

Converting HLO to StableHLO mistakes groups given over a mesh: it loses their device ids. Such
groups are read off the HLO text, where they are complete; ``jaxlib_api.hlo`` writes them as lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from neuronjax.errors import PartitionError

Groups = tuple[tuple[int, ...], ...]

_PERMUTED = r"\[(?P<reshape>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?"
_PERMUTED_FORM = re.compile(_PERMUTED)
_IOTA_FORM = re.compile(r"\[(?P<dims>[\d,]+)\]<=" + _PERMUTED)
_LIST_FORM = re.compile(r"\{(?P<groups>(?:\{[\d, ]+\}[, ]*)*)\}")
_MESH_FORM = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\](?:, ?device_ids=\((?P<ids>[^)]*(?:\([^)]*\))?[^)]*)\))? ?"
    r"\{(?P<over>[^}]*)\}"
)
_COLLECTIVE = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>\S+) = .*?, replica_groups=(?P<groups>mesh\[.*)$"
)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def _permute(match: re.Match[str]) -> np.ndarray:
    reshape = _numbers(match["reshape"])
    ids = np.arange(int(np.prod(reshape))).reshape(reshape)
    if match["perm"]:
        ids = ids.transpose(_numbers(match["perm"]))
    return ids.reshape(-1)


def _iota(match: re.Match[str]) -> np.ndarray:
    return _permute(match).reshape(_numbers(match["dims"]))


def _axis(name: str, sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """An axis or sub-axis ``'x':(pre)size`` as (axis, size of what lies before it, own size)."""
    axis, _, rest = name.partition(":")
    axis = axis.strip().strip("'\"")
    if not rest:
        return axis, 1, sizes[axis]
    match = re.fullmatch(r"\((\d+)\)(\d+)", rest.strip())
    if match is None:
        raise PartitionError(f"unknown sub-axis {name!r} in a mesh replica group")
    return axis, int(match[1]), int(match[2])


def _mesh(match: re.Match[str]) -> Groups:
    sizes: dict[str, int] = {}
    for entry in match["axes"].split(","):
        name, _, size = entry.rpartition("=")
        sizes[name.strip().strip("'\"")] = int(size)
    ids = np.arange(int(np.prod(list(sizes.values()))))
    if match["ids"]:
        iota = _PERMUTED_FORM.match(match["ids"])
        ids = _permute(iota) if iota else np.array(_numbers(match["ids"]))
    over = [_axis(name, sizes) for name in match["over"].split(",") if name.strip()]
    shape: list[int] = []
    chosen: list[int] = []
    for name, size in sizes.items():
        parts = sorted((pre, own) for axis, pre, own in over if axis == name)
        done = 1
        for pre, own in parts:
            if pre > done:
                shape.append(pre // done)
            chosen.append(len(shape))
            shape.append(own)
            done = pre * own
        shape.append(size // done)
    rest = [dim for dim in range(len(shape)) if dim not in chosen]
    grid = ids.reshape(shape).transpose(rest + _in_written_order(over, sizes, chosen))
    members = int(np.prod([own for _, _, own in over])) if over else 1
    return tuple(tuple(int(i) for i in row) for row in grid.reshape(-1, members))


def _in_written_order(
    over: list[tuple[str, int, int]], sizes: Mapping[str, int], chosen: list[int]
) -> list[int]:
    order = {name: position for position, name in enumerate(sizes)}
    by_mesh = sorted(range(len(over)), key=lambda i: (order[over[i][0]], over[i][1]))
    position = dict(zip(by_mesh, chosen, strict=True))
    return [position[i] for i in range(len(over))]


def parse_groups(text: str, devices: int) -> Groups:
    """Replica groups from any of the forms HLO prints; empty braces mean one group of all.

    Raises:
      PartitionError: an unknown form.
    """
    text = text.strip()
    if listed := _LIST_FORM.match(text):
        groups = tuple(tuple(_numbers(g)) for g in re.findall(r"\{([^}]+)\}", listed["groups"]))
        return groups or (tuple(range(devices)),)
    if iota := _IOTA_FORM.match(text):
        return tuple(tuple(int(i) for i in row) for row in _iota(iota))
    if mesh := _MESH_FORM.match(text):
        return _mesh(mesh)
    raise PartitionError(f"unknown form of replica groups: {text[:120]!r}")


def mesh_groups(hlo_text: str, devices: int) -> dict[str, Groups]:
    """Instruction name -> replica groups of the collectives whose groups are given over a mesh."""
    groups: dict[str, Groups] = {}
    for line in hlo_text.splitlines():
        match = _COLLECTIVE.match(line) if "=mesh[" in line else None
        if match:
            groups[match["name"]] = parse_groups(match["groups"], devices)
    return groups
