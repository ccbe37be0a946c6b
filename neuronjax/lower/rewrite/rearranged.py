"""What is done element by element with the rearranged result of a convolution comes before that.

The kernel of a product does it on its way out of PSUM, and what is moved afterwards is as narrow as
it gets:

    transpose(convolution(x, w)) + bias = transpose(convolution(x, w) + bias')
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.hlo.graph import Graph, Op, Value
from neuronjax.hlo.module import TensorSpec
from neuronjax.lower.operations import is_elementwise, number_of, peel
from neuronjax.lower.rewriter import Writer
from neuronjax.lower.trips import uses_of

_LAYOUT = frozenset({"reshape", "transpose", "slice", "pad"})


def rearranged_late(graph: Graph) -> None:
    """Moves element-wise operations in front of the layout operations behind convolutions; in
    place."""
    users = uses_of(graph)
    operations: list[Op] = []
    for op in graph.operations:
        made = _before(op, users) if is_elementwise(op) else None
        if made is None:
            operations.append(op)
            continue
        operations += made
        for value in {v for new in made for v in (*new.operands, *new.results)}:
            users[value] = max(users[value], 1)
    graph.operations[:] = operations


def _before(op: Op, users: Counter[Value]) -> list[Op] | None:
    """The operation on the result of a convolution, and the layout operations after it."""
    for number, value in enumerate(op.operands):
        chain = _chain(value, users)
        if chain:
            others = [other for i, other in enumerate(op.operands) if i != number]
            if value in others or not _keeps_padding(op, chain):
                return None
            return _exchanged(op, number, chain)
    return None


def _chain(value: Value, users: Counter[Value]) -> list[Op]:
    """The layout operations between a convolution and a value that nobody else reads."""
    chain: list[Op] = []
    while value.producer is not None and value.producer.name in _LAYOUT and users[value] == 1:
        chain.append(value.producer)
        value = value.producer.operands[0]
    made, reads = value.producer, users[value]
    while made is not None and reads == 1 and is_elementwise(made):
        value = max(made.operands, key=lambda operand: math.prod(operand.shape))
        made, reads = value.producer, users[value]
    return chain[::-1] if made is not None and made.name == "convolution" and reads == 1 else []


def _keeps_padding(op: Op, chain: Sequence[Op]) -> bool:
    """Whether what lies around the elements stays what it is: zeros that are converted."""
    pads = [step for step in chain if step.name == "pad"]
    return not pads or (op.name == "convert" and all(number_of(p.operands[1]) == 0 for p in pads))


def _exchanged(op: Op, number: int, chain: Sequence[Op]) -> list[Op] | None:
    root = chain[0].operands[0]
    axes = _Axes.of(root.shape)
    for step in chain:
        if not axes.follow(step):
            return None
    writer = Writer(op.source, op.scope)
    operands = []
    for i, operand in enumerate(op.operands):
        seen = root if i == number else _seen_before(writer, operand, root.shape, axes)
        if seen is None:
            return None
        operands.append(seen)
    dtype = op.result.dtype
    value = writer.add(op.name, *operands, shape=root.shape, dtype=dtype, **op.attributes)
    for step in chain:
        fill = [writer.constant(0, Value(TensorSpec((), dtype)))] * (step.name == "pad")
        value = writer.add(
            step.name, value, *fill, shape=step.result.shape, dtype=dtype, **step.attributes
        )
    return writer.made(op, value)


def _seen_before(writer: Writer, value: Value, shape: Sequence[int], axes: _Axes) -> Value | None:
    """An operand as it would have to lie for the layout operations to make it what it is."""
    fill = number_of(value)
    if fill is not None:
        return writer.constant(fill, Value(TensorSpec(tuple(shape), value.dtype)))
    base, relation = peel(value)
    parts = [(source, axes.now[d]) for d, source in enumerate(relation) if source is not None]
    if len({source for source, _ in parts}) != len(parts) or any(p is None for _, p in parts):
        return None
    factors = {source: part for source, part in parts if part is not None}
    if any(base.shape[source] != math.prod(axes.sizes[f] for f in factors[source])
           for source in factors):  # fmt: skip
        return None
    order = [f for source in sorted(factors) for f in factors[source]]
    inner = writer.reshape(base, [axes.sizes[factor] for factor in order])
    kept = [axis for axis, part in enumerate(axes.before) if set(part) & set(order)]
    wide = [factor for axis in kept for factor in axes.before[axis]]
    if wide != order:
        places = [wide.index(factor) for factor in order]
        inner = writer.broadcast(inner, [axes.sizes[factor] for factor in wide], places)
    inner = writer.reshape(inner, [shape[axis] for axis in kept])
    return writer.broadcast(inner, shape, kept)


@dataclass
class _Axes:
    """The axes of a value before and after layout operations, as products of the same factors."""

    #: Factor -> its size; factors are numbers.
    sizes: dict[int, int]
    before: list[list[int]]
    #: None: an axis of which a part was cut off, or that has more around it.
    now: list[list[int] | None]

    @classmethod
    def of(cls, shape: Sequence[int]) -> _Axes:
        return cls(
            dict(enumerate(shape)), [[axis] for axis in range(len(shape))],
            [[axis] for axis in range(len(shape))],
        )  # fmt: skip

    def follow(self, step: Op) -> bool:
        """Takes a layout operation into account; False if it mixes axes."""
        if step.name == "transpose":
            self.now = [self.now[axis] for axis in step.attributes["permutation"]]
        elif step.name == "reshape":
            return self._reshape(step.operands[0].shape, step.result.shape)
        else:
            same = zip(step.operands[0].shape, step.result.shape, strict=True)
            self.now = [
                axis if a == b else None for axis, (a, b) in zip(self.now, same, strict=True)
            ]
        return True

    def _reshape(self, source: Sequence[int], target: Sequence[int]) -> bool:
        if any(axis is None for axis in self.now):
            return source == target
        flat = [factor for axis in self.now if axis is not None for factor in axis]
        self.now = []
        for size in target:
            taken: list[int] = []
            have = 1
            while have < size:
                if not flat:
                    return False
                have *= self._first(flat, size // have)
                taken.append(flat.pop(0))
            if have != size:
                return False
            self.now.append(taken)
        return all(self.sizes[factor] == 1 for factor in flat)

    def _first(self, flat: list[int], wanted: int) -> int:
        """The size of the next factor, which is split if more than `wanted` is left."""
        factor = flat[0]
        size = self.sizes[factor]
        if size <= wanted or size % wanted:
            return size
        new = max(self.sizes) + 1
        self.sizes[factor], self.sizes[new] = wanted, size // wanted
        for axis in itertools.chain(self.before, self.now, [flat]):
            if axis is not None and factor in axis:
                axis.insert(axis.index(factor) + 1, new)
        return wanted
