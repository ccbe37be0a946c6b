"""A group of element-wise operations and reductions as a tile program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from neuronjax.hlo.graph import Op, Value
from neuronjax.lower.chain import elementwise
from neuronjax.lower.chain.tile_program import (
    Input,
    Node,
    Output,
    Reference,
    TileProgram,
    simplified,
)
from neuronjax.lower.group.fuse import Group
from neuronjax.lower.operations import is_splat, peel
from neuronjax.lower.values.view import View
from neuronjax.program.affine import ZERO
from neuronjax.program.operand import Buffer, Immediate

_KEPT = frozenset({"comparison_direction", "compare_type"})
"""Attributes that decide what an element-wise operation computes."""


class Places(Protocol):
    """What a tile program needs to know of the values around it."""

    views: dict[Value, View]

    def view(self, value: Value) -> View:
        """The view of a value: where it lies."""

    def straight(self, value: Value, axes: Sequence[int | None]) -> View:
        """The view of a value in the order in which a domain goes through it."""

    def place(self, value: Value, *, in_any_order: bool) -> Buffer:
        """The buffer in which a value is to be made."""


class GroupProgram:
    """Builds the tile program of a group; `given` are values that its kernel has in tiles."""

    def __init__(
        self,
        places: Places,
        group: Group,
        operations: Sequence[Op],
        needed: set[Value],
        given: tuple[Value, ...],
    ) -> None:
        self.places, self.group, self.operations = places, group, operations
        self.needed, self.given = needed, given
        assert group.domain is not None
        self.domain = tuple(group.domain)
        self.inputs: list[Input] = []
        self.views: list[View] = []
        self.nodes: list[Node] = []
        self.references: dict[Any, Reference | Immediate] = {}

    def build(self) -> tuple[TileProgram, list[View], list[Buffer]]:
        """The program, the views that it reads and the buffers that it writes."""
        for number, value in enumerate(self.given):
            axes = self._axes(self.group.maps[value])
            self.references[value] = Reference(number, is_input=True)
            self.inputs.append(Input(None, (0,) * len(self.domain), ZERO, value.dtype, axes))
        for op in self.operations:
            self._node(op)
        values = [value for value in self._made() if value in self.needed]
        outputs: list[Output] = []
        results: list[Buffer] = []
        for value in values:
            buffer = self.places.place(value, in_any_order=bool(self.given))
            results.append(buffer)
            reference = self.references[value]
            assert isinstance(reference, Reference)
            view = self.places.views[value]
            strides = self._strides(view, self.group.maps[value])
            outputs.append(Output(reference, len(self.views) + len(outputs), strides, view.offset))
        program = TileProgram(
            self.domain, self.group.reduced, tuple(self.inputs), tuple(self.nodes), tuple(outputs)
        )
        return (program if self.given else simplified(program)), self.views, results

    def _made(self) -> Iterable[Value]:
        yield from self.given
        for op in self.operations:
            yield from op.results

    def _axes(self, placed: Sequence[int | None]) -> frozenset[int]:
        return frozenset(a for a in placed if a is not None and self.domain[a] != 1)

    def _strides(self, view: View, placed: Sequence[int | None]) -> tuple[int, ...]:
        strides = [0] * len(self.domain)
        for dim, axis in enumerate(placed):
            if axis is not None:
                strides[axis] = view.strides[dim]
        return tuple(strides)

    def _node(self, op: Op) -> None:
        placed = self.group.maps[op.result]
        is_reduction = op.name == "reduce"
        walked: Sequence[int | None]
        if is_reduction:
            name = f"reduce_{op.regions[0].operations[0].name}"
            # Dimensions of size 1 may have been reduced before others of the same group.
            reduced = tuple(sorted(self.group.reduced - set(placed)))
            walked = self._domain_of(op)
            operands: tuple[Reference | Immediate, ...] = (
                self._reference(op.operands[0], walked),
                self._reference(op.operands[1], ()),
            )
        else:
            name, reduced, walked = op.name, (), placed
            operands = tuple(self._reference(operand, placed) for operand in op.operands)
        axes = self._axes(placed)
        known = self._constant(op, operands)
        if known is not None:
            self.references[op.result] = known
            return
        same = self._again(op, operands)
        if same is not None:
            self.references[op.result] = same
            return
        if op.result not in self.needed and not is_reduction:
            axes_of_operands = (
                self._axes_of(operand) for operand in operands if isinstance(operand, Reference)
            )
            axes = frozenset().union(*axes_of_operands) & axes
        self.references[op.result] = Reference(len(self.nodes))
        self.nodes.append(
            Node(
                name=name,
                operands=operands,
                axes=axes,
                operand_dtype=_typed(op),
                dtype=op.result.dtype,
                reduced=reduced,
                attributes=tuple(sorted((k, v) for k, v in op.attributes.items() if k in _KEPT)),
            )
        )

    def _constant(self, op: Op, operands: tuple[Reference | Immediate, ...]) -> Immediate | None:
        """A converted constant, if nobody needs it in memory."""
        floats = all(elementwise.is_float(value.dtype) for value in (*op.operands, op.result))
        if op.name != "convert" or op.result in self.needed or not floats:
            return None
        (number,) = operands
        if not isinstance(number, Immediate):
            return None
        return Immediate(np.asarray(number.value).astype(op.result.dtype).item())

    def _again(self, op: Op, operands: tuple[Reference | Immediate, ...]) -> Reference | None:
        """The conversion, if it was made before; several readers of a value may have one."""
        if op.name != "convert" or op.result in self.needed:
            return None
        conversions = (
            Reference(number)
            for number, node in enumerate(self.nodes)
            if node.name == "convert"
            and node.operands == operands
            and node.dtype == op.result.dtype
        )
        return next(conversions, None)

    def _domain_of(self, op: Op) -> Sequence[int | None]:
        """The dimension of the domain for each dimension of a reduction's operand."""
        dimensions = op.attributes["dimensions"]
        kept = iter(self.group.maps[op.result])
        base, relation = peel(op.operands[0])
        if base in self.references:
            return _compose(relation, self.group.maps[base])
        ways = [way for value, way in self.group.inputs if value is base]
        shape = op.operands[0].shape
        reduced = iter(sorted(self.group.reduced))
        placed = [
            (next(reduced) if shape[dim] != 1 else None) if dim in dimensions else next(kept)
            for dim in range(len(shape))
        ]
        if len(ways) == 1:
            composed = _compose(relation, ways[0])
            placed = [
                dimension if dimension is not None else placed[i]
                for i, dimension in enumerate(composed)
            ]
        return placed

    def _axes_of(self, reference: Reference) -> frozenset[int]:
        rows = self.inputs if reference.is_input else self.nodes
        return rows[reference.number].axes

    def _reference(self, operand: Value, placed: Sequence[int | None]) -> Reference | Immediate:
        base, relation = peel(operand)
        if base in self.references:
            return self.references[base]
        if is_splat(base) and base.producer is not None:
            return Immediate(base.producer.attributes["value"].flat[0].item())
        way: list[int | None] = [None] * len(base.shape)
        for dim, axis in enumerate(relation):
            if axis is not None:
                way[axis] = placed[dim]
        key = (base, tuple(way))
        if key not in self.references:
            is_plain = not self.given and not self.group.reduced
            view = self.places.straight(base, way) if is_plain else self.places.view(base)
            strides = self._strides(view, way)
            self.references[key] = Reference(len(self.inputs), is_input=True)
            self.inputs.append(
                Input(
                    buffer=len(self.views),
                    strides=strides,
                    offset=view.offset,
                    dtype=base.dtype,
                    axes=frozenset(axis for axis, stride in enumerate(strides) if stride),
                )
            )
            self.views.append(view)
        return self.references[key]


def _compose(relation: Sequence[int | None], base: Sequence[int | None]) -> list[int | None]:
    return [None if axis is None else base[axis] for axis in relation]


def _typed(op: Op) -> np.dtype:
    """The type in which an operation computes: of its first operand that is no predicate."""
    index = 1 if op.name == "select" else 0
    return op.operands[index].dtype if op.operands else op.result.dtype
