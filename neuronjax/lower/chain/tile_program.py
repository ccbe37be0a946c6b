"""A chain of operations over a domain, as records: what `tiles` writes instructions for.

Each value of a chain varies along some of the dimensions: all of them (a tensor), all but the
reduced ones (a row value), or fewer (a bias).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuronjax.machine.specs import WORD_BYTES
from neuronjax.program.affine import ZERO, Affine
from neuronjax.program.operand import Immediate


@dataclass(frozen=True, slots=True)
class Input:
    """A value from outside: its stride along each dimension of the domain; 0: it does not vary.

    `buffer` numbers the buffers of the kernel; None: the value is given in a tile.
    """

    buffer: int | None
    strides: tuple[int, ...]
    offset: Affine
    dtype: np.dtype
    axes: frozenset[int]

    def spread(self, most: int) -> int:
        """Elements of memory for each one of a row, where at most so many are; 0: one, or more.

        From more on, a whole row takes the room of others in SBUF.
        """
        step = min((abs(stride) for stride in self.strides if stride), default=0)
        return step if 1 < step <= most and self.dtype.itemsize <= WORD_BYTES else 0


@dataclass(frozen=True, slots=True)
class Reference:
    """An operand: input or node of that number."""

    number: int
    is_input: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the chain; `axes` are the dimensions that its result varies along."""

    name: str
    operands: tuple[Reference | Immediate, ...]
    axes: frozenset[int]
    operand_dtype: np.dtype
    dtype: np.dtype
    #: Dimensions that a reduction takes away, and how.
    reduced: tuple[int, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A node or input to store, with the strides of its buffer along the domain."""

    value: Reference
    buffer: int
    strides: tuple[int, ...]
    offset: Affine = ZERO


@dataclass(frozen=True, slots=True)
class TileProgram:
    """A chain over a domain; equal records are equal kernels."""

    domain: tuple[int, ...]
    reduced: frozenset[int]
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]

    def axes_of(self, reference: Reference) -> frozenset[int]:
        """Dimensions that a value varies along."""
        number = reference.number
        return self.inputs[number].axes if reference.is_input else self.nodes[number].axes

    def dtype_of(self, reference: Reference) -> np.dtype:
        """The type of a value."""
        number = reference.number
        return self.inputs[number].dtype if reference.is_input else self.nodes[number].dtype


def levels(program: TileProgram) -> tuple[int, ...]:
    """The number of reductions that must be complete, one after the other, before each node."""
    level: list[int] = []
    for node in program.nodes:
        before = [v.number for v in node.operands if isinstance(v, Reference) and not v.is_input]
        after = (level[number] + bool(program.nodes[number].reduced) for number in before)
        level.append(max(after, default=0))
    return tuple(level)


def simplified(program: TileProgram) -> TileProgram:
    """The program over as few dimensions as walk the same way in all of its values."""
    order = [axis for axis, size in enumerate(program.domain) if size > 1]
    kept: list[list[int]] = []
    for axis in order:
        if kept and _joinable(program, kept[-1][-1], axis):
            kept[-1].append(axis)
        else:
            kept.append([axis])
    number = {axis: index for index, group in enumerate(kept) for axis in group}
    last = [group[-1] for group in kept]

    def strides(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(old[axis] for axis in last)

    def axes(old: frozenset[int]) -> frozenset[int]:
        return frozenset(number[axis] for axis in old if axis in number)

    return TileProgram(
        domain=tuple(math.prod(program.domain[axis] for axis in group) for group in kept),
        reduced=axes(program.reduced),
        inputs=tuple(
            replace(source, strides=strides(source.strides), axes=axes(source.axes))
            for source in program.inputs
        ),
        nodes=tuple(
            replace(
                node,
                axes=axes(node.axes),
                reduced=tuple(sorted({number[a] for a in node.reduced if a in number})),
            )
            for node in program.nodes
        ),
        outputs=tuple(
            replace(output, strides=strides(output.strides)) for output in program.outputs
        ),
    )


def _joinable(program: TileProgram, outer: int, inner: int) -> bool:
    size = program.domain[inner]
    if (outer in program.reduced) != (inner in program.reduced):
        return False
    walks = [
        (source.axes, source.strides) for source in program.inputs if source.buffer is not None
    ]
    walks += [(program.axes_of(output.value), output.strides) for output in program.outputs]
    if any(
        (outer in axes) != (inner in axes) or strides[outer] != strides[inner] * size
        for axes, strides in walks
    ):
        return False
    return all(
        (outer in node.axes) == (inner in node.axes)
        and (outer in node.reduced) == (inner in node.reduced)
        for node in (*program.nodes,)
    )
