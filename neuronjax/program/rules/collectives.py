"""Collectives: groups, sizes, memories, streams.

Sources: NKI collectives; Neuron docs, "Neuron collectives" and "Compute-communication overlap".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuronjax.program.collective import (
    AllGather,
    AllToAll,
    CollectiveInstruction,
    GroupCollective,
    Permute,
    ReduceScatter,
    RingPermute,
    Uneven,
    UnevenAllGather,
    UnevenAllToAll,
)
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Memory
from neuronjax.program.rules.site import Complaint, Site

STREAMS = 4
"""Concurrent streams of collectives."""
_HBM_ONLY = (AllToAll, Permute, Uneven)
_OF_ONE = (Permute, RingPermute, Uneven)
"""Collectives of one tensor at a time."""
#: Elements of a source and of its result are as 1 to n, or n to 1, of a group of n.
_GROWS, _SHRINKS = (AllGather,), (ReduceScatter,)
_DIMENSIONS: Mapping[type[Instruction], Mapping[Memory, tuple[int, ...]]] = {
    AllGather: {Memory.HBM: (0,), Memory.SBUF: (0, 1)},
    ReduceScatter: {Memory.HBM: (0,), Memory.SBUF: (0,)},
    AllToAll: {Memory.HBM: (0,)},
}


def groups(site: Site) -> Iterator[Complaint]:
    """Replica groups have the same size, and every rank is in exactly one of them."""
    instruction = site.instruction
    ranks = site.program.ranks
    if isinstance(instruction, GroupCollective):
        members = sorted(rank for group in instruction.groups for rank in group)
        if members != list(range(ranks)):
            yield f"groups {instruction.groups}", f"each of the ranks 0 to {ranks - 1} once"
        if len({len(group) for group in instruction.groups}) > 1:
            yield f"groups {instruction.groups}", "groups of one size"
    if isinstance(instruction, Permute):
        for name, side in (("source", 0), ("target", 1)):
            members = [pair[side] for pair in instruction.pairs]
            if len(set(members)) < len(members) or not set(members) <= set(range(ranks)):
                yield f"{name}s {members}", f"ranks 0 to {ranks - 1}, each at most once"


def collectives(site: Site) -> Iterator[Complaint]:
    """Sources and results match in type and size and lie in the same permitted memory."""
    instruction = site.instruction
    if not isinstance(instruction, CollectiveInstruction):
        return
    if not 0 <= instruction.stream < STREAMS:
        yield f"stream {instruction.stream}", f"0 to {STREAMS - 1}"
    for_one = 2 if isinstance(instruction, RingPermute) and instruction.op else 1
    if not instruction.dsts or len(instruction.srcs) != for_one * len(instruction.dsts):
        yield (
            f"{len(instruction.srcs)} sources, {len(instruction.dsts)} results",
            "one for one" if for_one == 1 else "two for one",
        )
        return
    held = {access.memory for access in (*instruction.srcs, *instruction.dsts)}
    if len(held) > 1:
        yield "tensors in HBM and SBUF", "all of them in one"
    if len(instruction.dsts) > 1 and (Memory.SBUF in held or isinstance(instruction, _OF_ONE)):
        yield (
            f"{len(instruction.dsts)} tensors at once",
            "1; several in HBM only, of no permutation and of even sizes",
        )
    if isinstance(instruction, _HBM_ONLY) and held != {Memory.HBM}:
        yield f"{instruction.mnemonic} outside HBM", "HBM"
    allowed = _DIMENSIONS.get(type(instruction), {}).get(next(iter(held)))
    dimension = getattr(instruction, "dimension", 0)
    if allowed is not None and dimension not in allowed:
        yield f"dimension {dimension}", ", ".join(map(str, allowed))
    yield from _sizes(instruction)


def _sizes(instruction: CollectiveInstruction) -> Iterator[Complaint]:
    size = (
        len(instruction.groups[0])
        if isinstance(instruction, GroupCollective) and instruction.groups
        else 1
    )
    if isinstance(instruction, Uneven):
        yield from _counts(instruction, size)
    copies = len(instruction.srcs) // len(instruction.dsts)
    for src, dst in zip(instruction.srcs, instruction.dsts * copies, strict=True):
        if src.element_type != dst.element_type:
            yield f"{src.element_type.name} to {dst.element_type.name}", "one type"
        given = src.elements * (size if isinstance(instruction, _GROWS) else 1)
        taken = dst.elements * (size if isinstance(instruction, _SHRINKS) else 1)
        if given != taken and not isinstance(instruction, Uneven):
            actual = f"{src.elements} elements to {dst.elements} in groups of {size}"
            yield actual, "as many, multiplied or divided by the size of a group"


def _counts(instruction: Uneven, size: int) -> Iterator[Complaint]:
    rows = 4 if instruction.has_places else 3
    counts = instruction.counts
    if counts.elements != rows * size or counts.partitions != 1:
        yield f"{counts.elements} counts on {counts.partitions} partitions", f"{rows} × {size} on 1"
    if counts.element_type.name != "uint32":
        yield f"counts of {counts.element_type.name}", "uint32"


def uneven(site: Site) -> Iterator[Complaint]:
    """What collectives of uneven sizes are limited to for now."""
    instruction = site.instruction
    version, lnc = site.version, site.program.target.lnc
    if isinstance(instruction, UnevenAllGather):
        if lnc != 2:
            yield f"{instruction.mnemonic} at LNC {lnc}", "LNC 2"
        if any(len(group) != 4 for group in instruction.groups):
            yield f"groups {instruction.groups}", "groups of 4 ranks"
    if isinstance(instruction, UnevenAllToAll) and version >= 4 and lnc != 2:
        yield f"{instruction.mnemonic} at LNC {lnc} of NeuronCore-v{version}", "LNC 2"
    is_placed = isinstance(instruction, Uneven) and instruction.has_places
    if is_placed and (version < 4 or isinstance(instruction, UnevenAllGather)):
        yield "places of what is received", "NeuronCore-v4 or later, of all_to_all_v alone"
