"""The round of a loop made of several: what differs becomes a function of the loop's variable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from neuronjax.nki.outlines import FLAGS, NotUniformError
from neuronjax.program.affine import Affine, First, Last, affine
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Register, RegisterOffset
from neuronjax.program.program import Loop

Part = TypeVar("Part", Instruction, Loop)


@dataclass(frozen=True)
class Merging:
    """Makes one of what stands at the same place in rounds of a loop, of which `Outlines.check` has
    said that they are alike but for the loops within them: the first two, and the last."""

    variable: str
    #: How many places a tile has that a round makes.
    slots: int
    #: The numbers of the rounds.
    numbers: Sequence[int]
    #: The names of the tiles that the first round makes.
    own: Set[str]

    def merged(self, values: Sequence[Any], what: str) -> Any:
        """``NotUniformError`` if the values are no function of the loop's variable."""
        first = values[0]
        if any(type(value) is not type(first) for value in values):
            raise NotUniformError(f"{what} differs")
        if isinstance(first, tuple):
            if any(len(value) != len(first) for value in values):
                raise NotUniformError(f"{what} differs in length")
            return tuple(self.merged(same, what) for same in zip(*values, strict=True))
        if isinstance(first, Access):
            return self._access(values, what)
        if isinstance(first, Register):
            return first
        if isinstance(first, Affine):
            return self._affine(values, what)
        if isinstance(first, Instruction | Loop):
            return self._record(values)
        if any(value != first for value in values):
            raise NotUniformError(f"{what} differs")
        return first

    def _record(self, values: Sequence[Part]) -> Part:
        first = values[0]
        if isinstance(first, Loop) and isinstance(first.trips, Register):
            raise NotUniformError("it contains a loop over a register")
        fields: dict[str, Any] = {}
        for name in (entry.name for entry in dataclasses.fields(first) if entry.init):
            entries = [getattr(value, name) for value in values]
            what = f"{name} of {getattr(first, 'mnemonic', 'a loop')}"
            is_flag = name in FLAGS
            fields[name] = self._flag(entries) if is_flag else self.merged(entries, what)
        return dataclasses.replace(first, **fields)

    def _flag(self, values: Sequence[bool | First | Last]) -> bool | First | Last:
        """A flag of all rounds, or of the first or last alone."""
        if all(value == values[0] for value in values):
            return values[0]
        for kind, chosen, others in (
            (First, values[0], values[1:]),
            (Last, values[-1], values[:-1]),
        ):
            if chosen is not False and not any(others):
                inner = () if chosen is True else chosen.variables
                if chosen is True or isinstance(chosen, kind):
                    return kind((*inner, self.variable))
        raise NotUniformError("matmul results accumulate differently")

    def _access(self, values: Sequence[Access], what: str) -> Access:
        first = values[0]
        buffer, slot = first.buffer, first.slot
        if any(value.slot != slot or value.buffer.slots != buffer.slots for value in values):
            raise NotUniformError(f"{what} has other places in some iterations")
        is_own = buffer.name in self.own and buffer.address is None
        if is_own and buffer.slots == 1 < self.slots:
            buffer = dataclasses.replace(buffer, slots=self.slots)
            slot = affine(0, **{self.variable: 1})
        return dataclasses.replace(
            first,
            buffer=buffer,
            slot=slot,
            partition=self._affine([value.partition for value in values], what),
            offset=self._offset([value.offset for value in values], what),
        )

    def _offset(
        self, values: Sequence[Affine | RegisterOffset], what: str
    ) -> Affine | RegisterOffset:
        first = values[0]
        if isinstance(first, Affine):
            return self._affine(values, what)
        bases = [value.base for value in values if isinstance(value, RegisterOffset)]
        return dataclasses.replace(first, base=self._affine(bases, what))

    def _affine(self, values: Sequence[Any], what: str) -> Affine:
        first: Affine = values[0]
        step = values[1].base - first.base
        for number, value in zip(self.numbers, values, strict=True):
            if value.base != first.base + number * step or value.terms != first.terms:
                raise NotUniformError(f"an address of {what} does not advance by equal steps")
        return first + affine(0, **{self.variable: step}) if step else first
