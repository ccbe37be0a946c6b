"""What rules of instructions are made of: operands as functions of the state of the loops.

A rule takes an instruction and its `Unit`, and returns a function that executes it. Values that it
reads are float32 or integers [partitions, free elements]; a constant is a number of shape [1, 1],
an element per partition is [partitions, 1]: both broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from neuronjax.emulate.element_types import PLAIN, Counter, Rounding, decoder, encoder, numpy_dtype
from neuronjax.emulate.frame import Frame, Values
from neuronjax.emulate.memory import Locations
from neuronjax.emulate.window import Watcher, Window
from neuronjax.machine.specs import CoreSpec, Engine
from neuronjax.program.control import Host
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Access, Immediate, Scalar
from neuronjax.program.walk import Place
from neuronjax.rounding import NUMPY, random_bits

Array = np.ndarray
Run = Callable[[Values], None]
Read = Callable[[Values], Array]
Write = Callable[[Values, Array], None]
HostFunction = Callable[[Host, list[Array]], list[Array]]
"""Does an instruction of the host: (instruction, sources) -> results."""
LANES = 128
STATE_WORDS = {Engine.GPSIMD: 6, Engine.VECTOR: 24}
"""Words of random state per lane (NKI ISA, rand_set_state)."""


def _accumulators() -> dict[Engine, Array]:
    return {each: np.zeros((LANES, 1), np.float32) for each in (Engine.SCALAR, Engine.VECTOR)}


def _random_state() -> dict[Engine, Array]:
    """Every lane has another seed, its first word. What hardware starts with is undocumented."""
    lane = np.arange(LANES, dtype=np.uint32)
    states = {each: np.zeros((LANES, words), np.uint32) for each, words in STATE_WORDS.items()}
    for place, state in enumerate(states.values()):
        state[:, 0] = random_bits(NUMPY, lane, np.array([place], np.uint32))
    return states


@dataclass
class CoreState:
    """What a core keeps beside its memories: accumulators and random state of its engines."""

    rank: int
    accumulators: dict[Engine, Array] = field(default_factory=_accumulators)
    random: dict[Engine, Array] = field(default_factory=_random_state)
    rounding: Rounding = PLAIN
    #: Counts the values that were rounded stochastically.
    rounded: Counter = field(default_factory=Counter)

    def reset(self) -> None:
        """Makes it as it was in the beginning, in place."""
        self.rounded.value = 0
        for accumulator in self.accumulators.values():
            accumulator[...] = 0
        for engine, state in _random_state().items():
            self.random[engine][...] = state


@dataclass(frozen=True, slots=True)
class Unit:
    """The surroundings of one instruction on one core."""

    instruction: Instruction
    place: Place
    frame: Frame
    locations: Locations
    core: CoreState
    spec: CoreSpec
    ranks: int
    host: HostFunction | None = None
    watcher: Watcher | None = None

    def window(self, access: Access, *, merges: bool = True) -> Window:
        """Where an access is; `merges` puts dimensions together that make one walk."""
        location = self.locations[access.buffer.name]
        return Window(
            self.instruction, access, location, self.frame, self.place.path, merges=merges
        )

    def raw(self, access: Access) -> Read:
        """Reads elements as they are: an array of `numpy_dtype`, perhaps a view of the memory.

        Its shape is that of the window; `flat` makes two dimensions of it.
        """
        window, watcher = self.window(access), self.watcher
        view = window.view
        if watcher is None:
            return view

        def read(values: Values) -> Array:
            watcher.reads(window, values, None)
            return view(values)

        return read

    def bits(self, access: Access) -> Read:
        """Reads elements as they are: [partitions, free elements]."""
        raw, flat = self.raw(access), (access.partitions, access.free_elements)
        return lambda values: raw(values).reshape(flat)

    def numbers(self, access: Access) -> Read:
        """Reads elements as float32: [partitions, free elements]."""
        raw, decode = self.raw(access), decoder(access.element_type)
        flat = (access.partitions, access.free_elements)
        return lambda values: decode(raw(values)).reshape(flat)

    def scalar(self, operand: Scalar | None, default: float = 0.0) -> Read:
        """Reads a constant or one element per partition, as float32."""
        if isinstance(operand, Access):
            return self.numbers(operand)
        constant = np.full((1, 1), default if operand is None else operand.value, np.float32)
        return lambda _: constant

    def constant(self, value: Immediate, access: Access) -> Array:
        """A constant as one element of the type of an access: [1, 1], rounded to nearest."""
        element = np.empty((1, 1), self.dtype(access))
        is_float = isinstance(value.value, float)
        number = np.full((1, 1), value.value, np.float32 if is_float else None)
        encoder(access.element_type, PLAIN, Counter())(element, number)
        return element

    def integers(self, operand: Scalar, dtype: np.dtype) -> Read:
        """Reads integers of `dtype`: elements as they are, or a constant."""
        if isinstance(operand, Access):
            bits = self.bits(operand)
            return lambda values: bits(values).astype(dtype, copy=False)
        constant = np.array([[int(operand.value)]]).astype(dtype)
        return lambda _: constant

    def output(self, access: Access) -> Write:
        """Writes float32 numbers, rounded, or integers, which wrap, into all elements."""
        window, watcher = self.window(access), self.watcher
        encode = encoder(access.element_type, self.core.rounding, self.core.rounded)
        view, shape = window.view, window.shape
        if watcher is None:
            return lambda values, result: encode(view(values), result.reshape(shape))

        def write(values: Values, result: Array) -> None:
            encode(view(values), result.reshape(shape))
            watcher.writes(window, values, None)

        return write

    def mover(self, access: Access) -> Write:
        """Writes elements as they are."""
        window, watcher = self.window(access), self.watcher
        view, shape = window.view, window.shape

        def write(values: Values, result: Array) -> None:
            view(values)[...] = result.reshape(shape)
            if watcher is not None:
                watcher.writes(window, values, None)

        return write

    def part(self, access: Access) -> Part:
        """Reads and writes some elements."""
        return Part(self.window(access), self)

    def dtype(self, access: Access) -> np.dtype:
        """dtype of the elements as they are."""
        return numpy_dtype(access.element_type)


class Part:
    """Elements of an access that a mask selects: [partitions, free elements]."""

    def __init__(self, window: Window, unit: Unit) -> None:
        self._window = window
        self._watcher = unit.watcher
        element_type = window.access.element_type
        self._decode = decoder(element_type)
        self._encode = encoder(element_type, unit.core.rounding, unit.core.rounded)

    def bits(self, values: Values, where: Array | None = None) -> Array:
        """All elements as they are, [partitions, free elements]; those of the mask are wanted."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._mask(where))
        return self._window.view(values).reshape(self._window.flat)

    def numbers(self, values: Values, where: Array | None = None) -> Array:
        """The same as float32."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._mask(where))
        return self._decode(self._window.view(values)).reshape(self._window.flat)

    def write(self, values: Values, result: Array, where: Array | None = None) -> None:
        """Writes numbers or integers, where the mask is set."""
        view, shape = self._window.view(values), self._window.shape
        result = np.broadcast_to(result, self._window.flat).reshape(shape)
        mask = self._mask(where)
        if mask is None:
            self._encode(view, result)
        else:
            fresh = np.empty(shape, view.dtype)
            self._encode(fresh, result)
            view[mask] = fresh[mask]
        if self._watcher is not None:
            self._watcher.writes(self._window, values, mask)

    def move(self, values: Values, result: Array, where: Array | None = None) -> None:
        """Writes elements as they are, where the mask is set."""
        view, mask = self._window.view(values), self._mask(where)
        moved = np.broadcast_to(result, self._window.flat).reshape(self._window.shape)
        if mask is None:
            view[...] = moved
        else:
            view[mask] = moved[mask]
        if self._watcher is not None:
            self._watcher.writes(self._window, values, mask)

    def row(self, values: Values) -> int:
        """The first partition of the memory."""
        return self._window.row(values)

    def _mask(self, where: Array | None) -> Array | None:
        """A mask [partitions, free elements or 1] for the leading dimensions of the window."""
        if where is None:
            return None
        if where.shape[1] == 1 and self._window.flat[1] != 1:
            return where[:, 0]
        return np.broadcast_to(where, self._window.flat).reshape(self._window.shape)


def is_immediate(operand: Scalar | None) -> bool:
    """Whether an operand is a constant."""
    return isinstance(operand, Immediate)
