"""Collectives over cores that the machine does not connect suitably."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.rules.operators import KNOWN_ISSUES
from neuronjax.legalize.rules.rule import Cores, Rule, Severity, Site, stablehlo
from neuronjax.machine.placement import is_connected


def _groups(op: ir.Operation, name: str) -> list[list[int]]:
    """The rows of an attribute of replica ids; -1 pads rows that are shorter than the longest."""
    rows = np.array(op.attributes[name])
    return [[int(replica) for replica in row if replica >= 0] for row in rows]


def _cores(group: Iterable[int], cores: Cores) -> list[int]:
    return [cores.ids[replica] for replica in group]


def _chips(ids: Iterable[int], cores: Cores) -> list[set[int]]:
    """The chips of cores, target by target; the network connects targets."""
    chips: dict[int, set[int]] = {}
    for id in ids:
        target, core = divmod(id, cores.machine.core_count)
        chips.setdefault(target, set()).add(cores.machine.core(core).chip)
    return list(chips.values())


def _unconnected(site: Site) -> str | None:
    cores = site.program.cores
    if cores is None:
        return None
    for group in _groups(site.op, "replica_groups"):
        ids = _cores(group, cores)
        for chips in _chips(ids, cores):
            if not is_connected(cores.machine, chips):
                return f"cores {ids} lie on chips {sorted(chips)} of {cores.machine}"
    return None


def _pairs(site: Site) -> list[list[int]]:
    return _groups(site.op, "source_target_pairs")


def _open_chain(site: Site) -> str | None:
    pairs = [pair for pair in _pairs(site) if len(pair) == 2]
    sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
    if sources == targets:
        return None
    return f"replicas {sorted(sources ^ targets)} only send or only receive"


def _distant_pair(site: Site) -> str | None:
    cores = site.program.cores
    if cores is None:
        return None
    for pair in _pairs(site):
        source, target = _cores(pair, cores)
        size = cores.machine.core_count
        hops = cores.machine.distance(source % size, target % size)
        if source // size == target // size and hops > 1:
            return f"cores {source} and {target} of {cores.machine} are {hops} links apart"
    return None


_GROUPED = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_broadcast")

RULES = (
    Rule(
        code="JAX_MESH",
        what="collectives over cores that are not connected",
        ops=stablehlo(*_GROUPED),
        check=_unconnected,
        severity=Severity.WARNING,
        message="Mesh configurations which use non-connected Neuron cores might crash",
        remedy="Make the mesh with neuronjax.make_mesh, which puts each axis on linked cores.",
        source=KNOWN_ISSUES,
    ),
    Rule(
        code="RT_PERMUTE_LINKS",
        what="permutes between cores without a link",
        ops=stablehlo("collective_permute"),
        check=_distant_pair,
        severity=Severity.WARNING,
        message="The pairs of a permute need direct physical connectivity",
        remedy="Make the mesh with neuronjax.make_mesh, which puts each axis on linked cores.",
        source="Neuron runtime, collective communication, Permute operation",
    ),
    Rule(
        code="RT_PERMUTE_RING",
        what="permutes that are not circular",
        ops=stablehlo("collective_permute"),
        check=_open_chain,
        severity=Severity.WARNING,
        message="Currently, only circular permute patterns are supported",
        remedy="Let the last core send to the first, and ignore what arrives there.",
        source="Neuron runtime, collective communication, Permute operation",
    ),
)
