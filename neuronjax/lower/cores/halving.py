"""Nodes in two halves: a loop by its trips, a copy within HBM by its elements.

The second half of a loop counts from 0 again; what depends on its variable is moved instead.
"""

from __future__ import annotations

import dataclasses
import math

from neuronjax.lower.write.stepping import Step, stepped
from neuronjax.program.affine import Affine, First, Last
from neuronjax.program.dma import DmaCopy
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Dim, Memory, RegisterOffset
from neuronjax.program.program import Loop, Node
from neuronjax.program.walk import leaves


def halves(node: Node, least: int) -> tuple[Node, Node] | None:
    """Both halves of a node, of a copy if it has so many bytes at least; None: it has none."""
    if isinstance(node, Loop):
        return _halves_of_loop(node)
    if isinstance(node, DmaCopy) and node.dst.nbytes >= least:
        return _halves_of_copy(node)
    return None


# Loops


def _halves_of_loop(loop: Loop) -> tuple[Loop, Loop] | None:
    if not isinstance(loop.trips, int) or loop.trips < 2:
        return None
    if any(_is_flagged(leaf, loop.variable) for leaf in leaves((loop,))):
        return None
    half = -(-loop.trips // 2)
    later = stepped(loop.body, Step(loop.variable, 1, half, is_first=False, is_last=True))
    return (
        dataclasses.replace(loop, trips=half),
        dataclasses.replace(loop, trips=loop.trips - half, body=later),
    )


def _is_flagged(instruction: Instruction, variable: str) -> bool:
    """Whether a flag asks for the first or last iteration."""
    values = (getattr(instruction, field.name) for field in dataclasses.fields(instruction))
    return any(isinstance(value, First | Last) and variable in value.variables for value in values)


# Copies


def _halves_of_copy(copy: DmaCopy) -> tuple[DmaCopy, DmaCopy] | None:
    """A copy within HBM, cut where the outermost dimensions of both walks let it."""
    if copy.dst.memory is not Memory.HBM or copy.src.memory is not Memory.HBM:
        return None
    for access in (copy.dst, copy.src):
        if not access.dims:
            return None
        cut = -(-access.dims[0].size // 2) * math.prod(access.sizes[1:])
        dst, src = _cut(copy.dst, cut), _cut(copy.src, cut)
        if dst is not None and src is not None:
            first, second = zip(dst, src, strict=True)
            return (
                dataclasses.replace(copy, dst=first[0], src=first[1]),
                dataclasses.replace(copy, dst=second[0], src=second[1]),
            )
    return None


def _cut(access: Access, elements: int) -> tuple[Access, Access] | None:
    """The first so many elements of a walk, and the others; None: a row would be cut."""
    outer, *inner = access.dims
    steps, rest = divmod(elements, math.prod(dim.size for dim in inner))
    if rest or not 0 < steps < outer.size:
        return None
    return (
        dataclasses.replace(access, dims=(Dim(outer.stride, steps), *inner)),
        dataclasses.replace(
            access,
            offset=_further(access.offset, steps * outer.stride),
            dims=(Dim(outer.stride, outer.size - steps), *inner),
        ),
    )


def _further(offset: Affine | RegisterOffset, by: int) -> Affine | RegisterOffset:
    if isinstance(offset, Affine):
        return offset + by
    return dataclasses.replace(offset, base=offset.base + by)
