"""A kernel of a logical core as one of its two physical cores runs it, by assumption.

Compiled programs say what each core runs (`Split`). For one at LNC 2 that does not, such as one
written by hand for a single stream, kernels are taken to run in halves along an outer loop: every
outermost loop of two or more trips runs half of them (rounded up); what is outside of loops both
cores do. Waits for more than the remaining signals bring are lowered by what is left out. A kernel
that names the two cores itself (`core_barrier`, `sendrecv`) is written for one of them, and stays
as it is.

Source: about-neuron/arch/neuron-features/logical-neuroncore-config.rst; that loops split evenly is
the model's.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from neuronjax.program.affine import Affine
from neuronjax.program.dma import SendReceive
from neuronjax.program.gpsimd_engine import CoreBarrier
from neuronjax.program.instruction import Instruction, Semaphore, Wait
from neuronjax.program.program import If, Kernel, Loop, Node, While
from neuronjax.program.walk import children, leaves

CORES = 2
"""Physical cores of a logical one at LNC 2."""


def half(kernel: Kernel) -> Kernel:
    """What one of two cores runs."""
    if any(isinstance(each, CoreBarrier | SendReceive) for each in leaves(kernel.body)):
        return kernel
    left_out: Counter[Semaphore] = Counter()
    brought: Counter[Semaphore] = Counter()
    body: list[Node] = []
    for node in kernel.body:
        shorter = _halved(node)
        body.append(_lowered(shorter, left_out, brought))
        after = _signals((shorter,), 1)
        left_out += _signals((node,), 1) - after
        brought += after
    return dataclasses.replace(kernel, body=tuple(body))


def is_split(kernel: Kernel) -> bool:
    """Whether a kernel has a loop that two cores share."""
    return any(_halved(node) is not node for node in kernel.body)


def _halved(node: Node) -> Node:
    if not isinstance(node, Loop) or not isinstance(node.trips, int) or node.trips < CORES:
        return node
    return dataclasses.replace(node, trips=-(-node.trips // CORES))


def _signals(nodes: tuple[Node, ...], times: int) -> Counter[Semaphore]:
    """What semaphores gain at most while nodes run."""
    total: Counter[Semaphore] = Counter()
    for node in nodes:
        if isinstance(node, Instruction):
            for signal in node.signals:
                total[signal.semaphore] += signal.by * times
        else:
            trips = (node.most_trips if isinstance(node, Loop) else None) or 1
            total += _signals(children(node), times * trips)
    return total


def _lowered(node: Node, left_out: Counter[Semaphore], brought: Counter[Semaphore]) -> Node:
    """A node whose waits count what is left out before it as if it had come."""
    if not left_out:
        return node
    if isinstance(node, Instruction):
        waits = tuple(
            Wait(wait.semaphore, _less(wait, left_out[wait.semaphore], brought[wait.semaphore]))
            for wait in node.waits
        )
        return dataclasses.replace(node, waits=waits)
    if isinstance(node, Loop | Kernel):
        inner = tuple(_lowered(each, left_out, brought) for each in node.body)
        return dataclasses.replace(node, body=inner)
    if isinstance(node, While):
        return dataclasses.replace(
            node, body=tuple(_lowered(each, left_out, brought) for each in node.body)
        )
    if isinstance(node, If):
        return dataclasses.replace(
            node,
            then=tuple(_lowered(each, left_out, brought) for each in node.then),
            otherwise=tuple(_lowered(each, left_out, brought) for each in node.otherwise),
        )
    return node


def _less(wait: Wait, left_out: int, brought: int) -> Affine:
    """A count that fewer earlier signals reach: those of the halved part, then its own."""
    if wait.count.base <= brought:
        return wait.count
    return wait.count + -min(left_out, wait.count.base - brought)
