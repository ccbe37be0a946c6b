"""Loop variables and registers at run time: one list of integers, with indices known in advance.

Everything that depends on them becomes a function of that list before the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from neuronjax.program.affine import Affine, First, Flag, Last
from neuronjax.program.operand import Immediate, Register, RegisterOffset
from neuronjax.program.program import Loop

Values = list[int]
"""Loop variables, their trips, and registers."""
Number = Callable[[Values], int]
Truth = Callable[[Values], bool]


@dataclass(frozen=True, slots=True)
class Frame:
    """The indices of loop variables, their trip counts, and registers in the list of values."""

    variables: Mapping[str, int]
    trips: Mapping[str, int]
    registers: Mapping[str, int]
    #: Loop variable -> trips at most, where that is known.
    limits: Mapping[str, int]

    def within(self, loop: Loop, place: int) -> Frame:
        """The frame of a loop body; the loop's variable is at `place`, its trip count follows."""
        limits = {name: most for name, most in self.limits.items() if name != loop.variable}
        if isinstance(loop.trips, int):
            limits[loop.variable] = loop.trips
        return replace(
            self,
            variables={**self.variables, loop.variable: place},
            trips={**self.trips, loop.variable: place + 1},
            limits=limits,
        )

    def number(self, affine: Affine) -> Number:
        """An affine function of loop variables."""
        return self.total(((affine, 1),), 0)

    def total(self, parts: Iterable[tuple[Affine, int]], base: int) -> Number:
        """`base` plus a weighted sum of affine functions."""
        steps: dict[int, int] = {}
        for affine, factor in parts:
            base += affine.base * factor
            for name, step in affine.terms:
                place = self.variables[name]
                steps[place] = steps.get(place, 0) + step * factor
        terms = list(steps.items())
        if not terms:
            return lambda _: base
        if len(terms) == 1:
            ((only, step),) = terms
            return lambda values: base + step * values[only]
        if len(terms) == 2:
            (first, by_one), (two, by_two) = terms
            return lambda values: base + by_one * values[first] + by_two * values[two]
        return lambda values: base + sum(step * values[place] for place, step in terms)

    def offset(self, offset: Affine | RegisterOffset) -> Number:
        """The number of an offset in elements."""
        if isinstance(offset, Affine):
            return self.number(offset)
        base, stride = self.number(offset.base), offset.stride
        place = self.registers[offset.register.name]
        return lambda values: base(values) + stride * values[place]

    def register_value(self, value: Register | Immediate | Affine) -> Number:
        """An operand of an instruction on registers."""
        if isinstance(value, Affine):
            return self.number(value)
        if isinstance(value, Immediate):
            constant = int(value.value)
            return lambda _: constant
        place = self.registers[value.name]
        return lambda values: values[place]

    def flag(self, flag: Flag) -> Truth:
        """Whether a flag is set."""
        if isinstance(flag, bool):
            return lambda _: flag
        places = [(self.variables[name], self.trips[name]) for name in flag.variables]
        if isinstance(flag, First):
            return lambda values: not any(values[place] for place, _ in places)
        assert isinstance(flag, Last)
        return lambda values: all(values[place] == values[trips] - 1 for place, trips in places)

    def valuation(self, values: Values) -> dict[str, int]:
        """Loop variable -> its value."""
        return {name: values[place] for name, place in self.variables.items()}
