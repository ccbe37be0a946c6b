"""Kernels taken apart for the physical cores of a logical one.

What counts is what a kernel leaves in HBM. Each of its outermost nodes that writes there goes to
one core, and a core runs whatever its nodes need: those before them that fill tiles or registers
which they find filled. So both cores may load the same tile; neither ever asks the other for one. A
loop is divided if its iterations are independent: none reads a tile that another one wrote, and
nobody else needs the loop. Each core then runs one half of the trips. So is a copy within HBM.

Cores share nothing but HBM, where none may write what the other one touches. A kernel that does
not come apart so, or would hardly gain by it, stays on the first core. So does a small one that
gains less than a transfer takes to begin and to be known to have ended: it will be joined with
others, and what both have in SBUF then needs no transfer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.lower.cores.halving import halves
from neuronjax.lower.cores.unread_tiles import without_unread_tiles
from neuronjax.lower.memory.lifetimes import carried
from neuronjax.lower.prices import Prices, busiest_time
from neuronjax.lower.sync.overlap import Overlaps
from neuronjax.lower.tuning import DEFAULT, Tuning
from neuronjax.lower.write.rebuild import rebuilt
from neuronjax.lower.write.small import is_small
from neuronjax.program.collective import CollectiveInstruction
from neuronjax.program.conflicts import Same, Touched, by_buffer, conflicts, meet, touches
from neuronjax.program.control import Host
from neuronjax.program.dma import SendReceive
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Register
from neuronjax.program.program import Function, Kernel, Loop, Node, Program, Split
from neuronjax.program.random_numbers import RandomNumbers
from neuronjax.program.walk import children, leaves

CORES = 2
"""Physical cores that a kernel is split over."""


_WHOLE = (CollectiveInstruction, Host, SendReceive, CoreBarrier, RandomNumbers)
"""What makes a kernel one core's: it concerns both, or draws from what an engine holds."""

Nodes = tuple[Node, ...]
Share = Mapping[int, Node]
"""What a core runs at positions of a kernel."""


def split(program: Program, prices: Prices | None = None, tuning: Tuning = DEFAULT) -> Program:
    """The program with kernels on both cores of a logical core, as far as they come apart.

    Without `prices` small kernels are split, too. Call it before `allocate`. Programs of one core
    for each logical one stay as they are.
    """
    if program.target.lnc != CORES:
        return program
    finished: dict[int, Node] = {}
    on_chip = frozenset(buffer.name for buffer in program.buffers if buffer.on_chip)
    bodies = (program.body, *(function.body for function in program.functions))
    shared = frozenset[str]().union(*map(_shared_registers, bodies))

    overlaps = Overlaps(program)

    def body(nodes: Nodes, function: Function | None) -> Nodes:
        same = overlaps.begin_together(overlaps.within(function))

        def change(node: Node) -> Node | None:
            if isinstance(node, Split):
                return node
            if not isinstance(node, Kernel):
                return None
            if id(node) not in finished:
                parts = _split(node, same, on_chip, shared, tuning)
                finished[id(node)] = (
                    parts if _pays(node, parts, prices, tuning.small_runs) else node
                )
            return finished[id(node)]

        return rebuilt(nodes, change)

    functions = tuple(
        dataclasses.replace(function, body=body(function.body, function))
        for function in program.functions
    )
    return dataclasses.replace(program, functions=functions, body=body(program.body, None))


def _split(
    kernel: Kernel, same: Same, on_chip: frozenset[str], shared: frozenset[str], tuning: Tuning
) -> Node:
    """A kernel on two cores; the kernel itself, if it does not come apart."""
    if not is_plain(kernel.body, on_chip):
        return kernel
    flow = _flow(kernel, shared)
    if flow.is_written_for_all:
        return kernel
    most = tuning.split_share * _work(kernel.body, 1)
    units = _units(flow)
    for find in (lambda: units, lambda: _meeting(flow, units, same)):
        bodies = _shared_out(
            flow, [_divided(flow, unit, same, tuning.halved_bytes) for unit in find()]
        )
        if any(not body or _work(body, 1) > most for body in bodies):
            continue
        first, second = map(touches, bodies)
        if conflicts(first, second, same) is False:
            parts = (_part(kernel, core, body) for core, body in enumerate(bodies))
            return Split(name=kernel.name, kernels=tuple(parts))
    return kernel


def _pays(kernel: Kernel, parts: Node, prices: Prices | None, small_runs: int) -> bool:
    """Whether a kernel in parts gains more than it loses by not being joined with others."""
    if prices is None or not isinstance(parts, Split) or not is_small(kernel.body, small_runs):
        return True
    moves = [move for leaf in leaves(kernel.body) if (move := prices.of(leaf).move) is not None]
    lost = max((move.start + move.completion for move in moves), default=0.0)
    shared = max(busiest_time(part, prices) for part in parts.kernels)
    return busiest_time(kernel, prices) - shared >= lost


def _part(kernel: Kernel, core: int, body: Nodes) -> Kernel:
    used = {access.buffer.name for leaf in leaves(body) for access in leaf.accesses()}
    tiles = tuple(buffer for buffer in kernel.buffers if buffer.name in used)
    return dataclasses.replace(kernel, name=f"{kernel.name} core {core}", body=body, buffers=tiles)


def is_plain(nodes: Nodes, on_chip: frozenset[str]) -> bool:
    """Whether all of it is known now, and concerns one core only."""
    return all(
        _is_of_one_core(node, on_chip)
        if isinstance(node, Instruction)
        else isinstance(node, Loop) and isinstance(node.trips, int) and is_plain(node.body, on_chip)
        for node in nodes
    )


def _is_of_one_core(node: Instruction, on_chip: frozenset[str]) -> bool:
    return not isinstance(node, _WHOLE) and not any(
        access.buffer.name in on_chip for access in node.accesses()
    )


# What needs what


@dataclass(frozen=True, slots=True)
class _Flow:
    """A kernel's outermost nodes, and the positions of what each needs to have run before."""

    nodes: Nodes
    needs: tuple[frozenset[int], ...]
    #: Positions of nodes that write HBM, and of those that set registers for all cores.
    stores: tuple[int, ...]
    setters: frozenset[int]
    #: Positions of loops of which an iteration needs another one.
    chains: frozenset[int]

    @property
    def is_written_for_all(self) -> bool:
        """Whether registers need what only one core may write."""
        return not self.setters.isdisjoint(self.stores)

    def body(self, share: Share) -> Nodes:
        """A core's share, and what that needs."""
        needed = sorted(self.needed(share))
        nodes = tuple(share.get(position, self.nodes[position]) for position in needed)
        return tuple(without_unread_tiles(nodes))

    def needed(self, positions: Collection[int]) -> frozenset[int]:
        """The positions of nodes that a core runs which has some of them."""
        return self.setters.union(positions, *(self.needs[position] for position in positions))


def _flow(kernel: Kernel, shared: frozenset[str]) -> _Flow:
    writers: dict[str, list[int]] = {}
    needs: list[frozenset[int]] = []
    chains, setters = set(), set()
    for position, node in enumerate(kernel.body):
        reads, written = _needed(kernel, node), _written(node)
        before = [writer for name in reads for writer in writers.get(name, ())]
        needs.append(frozenset(before).union(*(needs[writer] for writer in before)))
        if reads & written:
            chains.add(position)
        if not shared.isdisjoint(written):
            setters |= {position, *needs[position]}
        for name in written:
            writers.setdefault(name, []).append(position)
    stores = tuple(
        position
        for position, node in enumerate(kernel.body)
        if any(touch.is_write for touch in touches((node,)))
    )
    return _Flow(kernel.body, tuple(needs), stores, frozenset(setters), frozenset(chains))


def _written(node: Node) -> set[str]:
    """Names of the tiles and registers that a node writes."""
    return {
        _name(operand)
        for leaf in leaves((node,))
        for operand in leaf.writes()
        if _is_local(operand)
    }


def _needed(kernel: Kernel, node: Node) -> set[str]:
    """What a node, or an iteration of a loop, reads before it has written it."""
    loop = node if isinstance(node, Loop) else Loop(variable="_", trips=1, body=(node,))
    read = [operand for leaf in leaves((node,)) for operand in leaf.reads() if _is_local(operand)]
    names = {_name(operand) for operand in read}
    tiles = [buffer for buffer in kernel.buffers if buffer.name in names]
    return _early_registers((node,)) | {buffer.name for buffer in carried(loop, tiles)}


def _early_registers(nodes: Iterable[Node], known: Iterable[str] = ()) -> set[str]:
    """Names of the registers that are read before anything is sure to have set them, those that
    decide about control flow among them."""
    early, known = set[str](), set(known)
    for node in nodes:
        if isinstance(node, Instruction):
            read = [operand for operand in node.reads() if isinstance(operand, Register)]
            early.update(name for name in map(_name, read) if name not in known)
            known |= {name for name in _written(node) if name.startswith("$")}
            continue
        early |= _deciding(node) - known
        early |= _early_registers(children(node), known)
        if isinstance(node, Loop) and isinstance(node.trips, int):
            known |= {name for name in _written(node) if name.startswith("$")}
    return early


def _deciding(node: Node) -> set[str]:
    """The name of the register that decides about a loop or branch."""
    register = getattr(node, "register", getattr(node, "trips", None))
    return {_name(register)} if isinstance(register, Register) else set()


def _shared_registers(nodes: Iterable[Node]) -> frozenset[str]:
    """Names of the registers that outlive a kernel: something else reads what it sets."""
    shared: set[str] = set()
    for node in nodes:
        if isinstance(node, Kernel):
            shared |= _early_registers(node.body)
        elif not isinstance(node, Instruction):
            shared |= _deciding(node) | _shared_registers(children(node))
    return frozenset(shared)


def _is_local(operand: Access | Register) -> bool:
    return isinstance(operand, Register) or operand.buffer.on_chip


def _name(operand: Access | Register) -> str:
    return f"${operand.name}" if isinstance(operand, Register) else operand.buffer.name


# Units: what one core runs, or both run half of


def _units(flow: _Flow) -> list[tuple[int, ...]]:
    """Positions of nodes that write HBM, together where one needs another."""
    stores = list(flow.stores)

    def meet(index: int, other: int) -> bool:
        first, second = stores[index], stores[other]
        return first in flow.needs[second] or second in flow.needs[first]

    return _joined([(store,) for store in stores], meet)


def _meeting(flow: _Flow, units: Sequence[tuple[int, ...]], same: Same) -> list[tuple[int, ...]]:
    """Units, together where they meet in HBM.

    What nothing reads of a unit is left out only where that decides: it takes long to find.
    """
    own = [touches((node,)) for node in flow.nodes]
    known = [
        dict.fromkeys(touch for at in flow.needed(unit) for touch in own[at]) for unit in units
    ]
    whole = [by_buffer(touched) for touched in known]
    written = [by_buffer(touch for touch in touched if touch.is_write) for touched in known]

    @functools.cache
    def read(index: int) -> list[Touched]:
        return by_buffer(touches(flow.body({at: flow.nodes[at] for at in units[index]})))

    def may_meet(index: int, other: int) -> bool:
        if meet(whole[index], whole[other], same) is False:
            return False
        is_written = meet(written[index], written[other], same) is not False
        return is_written or meet(read(index), read(other), same) is not False

    return _joined(units, may_meet)


def _joined(
    units: Sequence[tuple[int, ...]], meet: Callable[[int, int], bool]
) -> list[tuple[int, ...]]:
    """Units, together where two of them meet, which is asked of those alone that are apart."""
    group = list(range(len(units)))
    for index, other in itertools.combinations(range(len(units)), 2):
        old, new = group[index], group[other]
        if old != new and meet(index, other):
            group = [new if number == old else number for number in group]
    joined: dict[int, tuple[int, ...]] = {}
    for number, unit in zip(group, units, strict=True):
        joined[number] = (*joined.get(number, ()), *unit)
    return list(joined.values())


def _divided(
    flow: _Flow, unit: tuple[int, ...], same: Same, least_copied: int
) -> tuple[Share, Share]:
    """What each core runs of a unit: a half, or one of them everything."""
    whole = {position: flow.nodes[position] for position in unit}
    (only, *others) = unit
    needed = any(only in needs for needs in flow.needs)
    if others or needed or only in flow.chains:
        return whole, {}
    parts = halves(flow.nodes[only], least_copied)
    if parts is None:
        return whole, {}
    first, second = ({only: part} for part in parts)
    met = conflicts(touches(flow.body(first)), touches(flow.body(second)), same)
    return (first, second) if met is False else (whole, {})


# Sharing out


def _shared_out(flow: _Flow, units: Iterable[tuple[Share, Share]]) -> tuple[Nodes, Nodes]:
    """Both cores' nodes: halves of what is divided, then each unit to the less busy core."""
    cores: tuple[dict[int, Node], dict[int, Node]] = ({}, {})
    work = [0, 0]
    for first, second in sorted(units, key=lambda unit: not unit[1]):
        way = (first, second) if second or work[0] <= work[1] else (second, first)
        for core, share in enumerate(way):
            cores[core].update(share)
            work[core] += _work(share.values(), 1)
    return flow.body(cores[0]), flow.body(cores[1])


def _work(nodes: Iterable[Node], times: int) -> int:
    """Elements that are touched."""
    return sum(
        times * sum(access.elements for access in node.accesses())
        if isinstance(node, Instruction)
        else _work(children(node), times * _trips(node))
        for node in nodes
    )


def _trips(node: Node) -> int:
    return node.trips if isinstance(node, Loop) and isinstance(node.trips, int) else 1
