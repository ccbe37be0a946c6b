"""Loads that wait for kernels before hold up no loads that need not.

An engine starts transfers in order. The Sync engine starts loads, so one of what a kernel before
has still to store would keep weights behind it from being loaded ahead. Such loads are started by
the engine that starts stores: those of the kernel before it has started by then.

A queue serves transfers in order. Late loads are on queues of stores, and copies on the chip, which
wait for results, are on queues without loads: weights that are loaded ahead are long. They are
started by the engine of stores, too: behind one of them the Sync engine would start no weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeGuard

from neuronjax.lower.write.rebuild import mapped, rebuilt, same, with_kernels
from neuronjax.machine.specs import Engine
from neuronjax.program.dma import DmaCopy, DmaInstruction
from neuronjax.program.gpsimd_engine import Iota
from neuronjax.program.instruction import Instruction
from neuronjax.program.neighbours import Neighbours
from neuronjax.program.operand import Access, Memory
from neuronjax.program.program import Kernel, Node, Program
from neuronjax.program.vector_engine import Memset
from neuronjax.program.walk import leaves

STORES = Engine.GPSIMD


def ahead(program: Program) -> Program:
    """The program with such loads on another engine. Call it between `allocate` and semaphores."""
    late: dict[int, set[str]] = {}
    for (kernel, _), names in Neighbours(program).stored(1).items():
        late.setdefault(kernel, set()).update(names)
    return with_kernels(program, lambda kernel: _changed(kernel, late.get(id(kernel), set())))


def _changed(kernel: Kernel, late: set[str]) -> Kernel:
    """A kernel whose loads of buffers `late` are on the other engine, as long as that has filled
    tiles at most and there are loads to be had before."""
    if not any(_is_early(leaf, late) for leaf in leaves(kernel.body)):
        return kernel
    body: list[Node] = []
    is_free, own = True, set[str]()
    is_idle = not any(map(_computes, leaves(kernel.body)))
    for node in kernel.body:
        is_free = is_free and not _is_busy([node])
        inside = list(leaves((node,)))
        held = late | own if is_idle else late
        waits = all(_is_load(leaf) and not _is_early(leaf, held) for leaf in inside)
        after_own = is_idle and all(_is_load(leaf) and not _is_early(leaf, own) for leaf in inside)
        body += rebuilt((node,), _late) if after_own or (is_free and waits) else (node,)
        own |= {
            access.buffer.name for leaf in inside for access in leaf.writes()
            if isinstance(access, Access) and access.memory is Memory.HBM
        }  # fmt: skip
    return dataclasses.replace(kernel, body=_apart(same(kernel.body, body)))


def _late(node: Node) -> Node | None:
    """A load that the other engine starts, alone or in loops."""
    if not isinstance(node, DmaCopy):
        return None
    return dataclasses.replace(node, engine=STORES, queue=node.queue | 1)


def _apart(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes whose copies on the chip use queues that no loads use, and are started by the engine
    that starts stores, unless that has other work: they wait for results, as stores do."""
    if not any(_is_on_chip(leaf) for leaf in leaves(nodes)):
        return nodes
    is_free = not any(map(_computes, leaves(nodes)))

    def change(node: DmaInstruction) -> DmaInstruction:
        if node.engine is not Engine.SYNC:
            return node
        first = node.queue // 4 * 4
        if not _is_on_chip(node):
            return node if node.queue == first else dataclasses.replace(node, queue=first)
        engine = STORES if is_free else node.engine
        return dataclasses.replace(node, queue=first + 2, engine=engine)

    return mapped(nodes, DmaInstruction, change)


def _is_on_chip(node: Node) -> TypeGuard[DmaCopy]:
    return isinstance(node, DmaCopy) and Memory.HBM not in (node.src.memory, node.dst.memory)


def _is_busy(nodes: Iterable[Node]) -> bool:
    return any(
        leaf.engine is STORES and not isinstance(leaf, Memset | Iota) for leaf in leaves(nodes)
    )


def _computes(instruction: Instruction) -> bool:
    """Whether it keeps the engine of stores from starting some."""
    return _is_busy([instruction]) and not isinstance(instruction, DmaInstruction)


def _is_load(node: Node) -> TypeGuard[DmaCopy]:
    return (
        isinstance(node, DmaCopy)
        and node.engine is Engine.SYNC
        and node.src.memory is Memory.HBM
        and not (node.src.registers or node.dst.registers)  # which are those of its engine
    )


def _is_early(node: Node, late: set[str]) -> bool:
    """Whether it is a load of nothing that a kernel before may still store."""
    return (
        isinstance(node, Instruction)
        and node.engine is Engine.SYNC
        and any(isinstance(operand, Access) for operand in node.reads())
        and not any(
            operand.buffer.name in late for operand in node.reads() if isinstance(operand, Access)
        )
    )
