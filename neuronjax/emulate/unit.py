"""The building blocks of rules: operands as functions of the state of the loops.

A rule takes an instruction and its `Unit`, and returns a function that executes it. Operands are
read as float32 or integers [partitions, free elements]; a constant has the shape [1, 1] and one
element per partition the shape [partitions, 1], and both broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from neuronjax.emulate.element_types import (
    PLAIN,
    RandomBits,
    Rounding,
    decoder,
    encoder,
    numpy_dtype,
)
from neuronjax.emulate.frame import Frame, Values
from neuronjax.emulate.memory import Locations
from neuronjax.emulate.window import Forms, Watcher, Window
from neuronjax.formats import FLOAT32
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
"""Executes a `Host` instruction: (instruction, sources) -> results."""
LANES = 128
STATE_WORDS = {Engine.GPSIMD: 6, Engine.VECTOR: 24}
"""Words of random state per lane (NKI ISA, rand_set_state)."""


def _accumulators() -> dict[Engine, Array]:
    return {engine: np.zeros((LANES, 1), np.float32) for engine in (Engine.SCALAR, Engine.VECTOR)}


@cache
def _first_words(place: int) -> Array:
    """Every lane has its own seed; the hardware's seeds are undocumented."""
    lane = np.arange(LANES, dtype=np.uint32)
    words = random_bits(NUMPY, lane, np.array([place], np.uint32))
    words.flags.writeable = False
    return words


def _random_state() -> dict[Engine, Array]:
    """Every lane has its own seed in its first word."""
    states = {engine: np.zeros((LANES, words), np.uint32) for engine, words in STATE_WORDS.items()}
    for place, state in enumerate(states.values()):
        state[:, 0] = _first_words(place)
    return states


def shape_of(access: Access) -> tuple[int, ...]:
    """The shape of a tensor that others see: partitions first on chip, a walk's sizes in HBM."""
    return (access.partitions, *access.sizes) if access.buffer.on_chip else access.sizes


@dataclass
class CoreState:
    """A core's state besides its memories: accumulators and random state of its engines."""

    rank: int
    accumulators: dict[Engine, Array] = field(default_factory=_accumulators)
    random: dict[Engine, Array] = field(default_factory=_random_state)
    rounding: Rounding = PLAIN
    #: Of stochastic rounding.
    rounding_bits: RandomBits = field(default_factory=RandomBits)

    def reset(self, rounding_seed: int) -> None:
        """Restores the initial state, in place; stochastic rounding begins with a seed."""
        self.rounding_bits.restart(rounding_seed)
        for accumulator in self.accumulators.values():
            accumulator[...] = 0
        for engine, state in _random_state().items():
            self.random[engine][...] = state


@dataclass(frozen=True, slots=True)
class Unit:
    """The context of one instruction on one core."""

    instruction: Instruction
    place: Place
    frame: Frame
    locations: Locations
    core: CoreState
    spec: CoreSpec
    ranks: int
    forms: Forms
    host: HostFunction | None = None
    watcher: Watcher | None = None
    #: The physical core, in a split; None: the instruction runs beside no other core.
    split_core: int | None = None

    @property
    def member(self) -> int:
        """The unit's number among those it exchanges data with: cores in a split, else ranks."""
        return self.core.rank if self.split_core is None else self.split_core

    def window(self, access: Access, *, merges: bool = True) -> Window:
        """The window of an access; `merges` joins adjacent dimensions where strides allow it."""
        location = self.locations[access.buffer.name]
        form = self.forms.of(access, self.frame.limits, merges=merges)
        return Window(self.instruction, access, location, self.frame, self.place.path, form)

    def raw(self, access: Access) -> Read:
        """Reads elements unconverted: an array of `numpy_dtype`, possibly a view of the memory.

        Its shape is that of the window; with `flat` it has two dimensions.
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
        """Reads elements unconverted: [partitions, free elements]."""
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
        """A constant in the type of an access, rounded to nearest: [1, 1]."""
        element = np.empty((1, 1), self.dtype(access))
        is_float = isinstance(value.value, float)
        number = np.full((1, 1), value.value, np.float32 if is_float else None)
        encoder(access.element_type, PLAIN, RandomBits())(element, number)
        return element

    def integers(self, operand: Scalar, dtype: np.dtype) -> Read:
        """Reads integers of `dtype`: unconverted elements, or a constant."""
        if isinstance(operand, Access):
            bits = self.bits(operand)
            return lambda values: bits(values).astype(dtype, copy=False)
        constant = np.array([[int(operand.value)]]).astype(dtype)
        return lambda _: constant

    def output(self, access: Access) -> Write:
        """Writes all elements: float32 numbers are rounded, integers wrap."""
        window, watcher = self.window(access), self.watcher
        encode = encoder(access.element_type, self.core.rounding, self.core.rounding_bits)
        view, shape = window.view, window.shape
        if watcher is None:
            return lambda values, result: encode(view(values), result.reshape(shape))

        def write(values: Values, result: Array) -> None:
            watcher.writes(window, values, None)
            encode(view(values), result.reshape(shape))

        return write

    def mover(self, access: Access) -> Write:
        """A function that writes all elements of an access, unconverted."""
        window, watcher = self.window(access), self.watcher
        view, shape = window.view, window.shape

        def write(values: Values, result: Array) -> None:
            if watcher is not None:
                watcher.writes(window, values, None)
            view(values)[...] = result.reshape(shape)

        return write

    def part(self, access: Access) -> Part:
        """Reads and writes selected elements."""
        return Part(self.window(access), self)

    def dtype(self, access: Access) -> np.dtype:
        """The dtype of the unconverted elements."""
        return numpy_dtype(access.element_type)


class Part:
    """Elements of an access that a mask selects: [partitions, free elements]."""

    def __init__(self, window: Window, unit: Unit) -> None:
        self._window = window
        self._watcher = unit.watcher
        element_type = window.access.element_type
        self._decode = decoder(element_type)
        self._encode = encoder(element_type, unit.core.rounding, unit.core.rounding_bits)
        self._is_float32 = element_type == FLOAT32

    def bits(self, values: Values, where: Array | None = None) -> Array:
        """All elements, unconverted, [partitions, free elements]; only masked ones are needed."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._mask(where))
        return self._window.view(values).reshape(self._window.flat)

    def numbers(self, values: Values, where: Array | None = None) -> Array:
        """All elements as float32, [partitions, free elements]; only masked ones are needed."""
        if self._watcher is not None:
            self._watcher.reads(self._window, values, self._mask(where))
        return self._decode(self._window.view(values)).reshape(self._window.flat)

    def write(self, values: Values, result: Array, where: Array | None = None) -> None:
        """Writes numbers or integers, where the mask is set."""
        view, shape = self._window.view(values), self._window.shape
        result = self._shaped(result)
        mask = self._mask(where)
        if self._watcher is not None:
            self._watcher.writes(self._window, values, mask)
        if mask is None:
            self._encode(view, result)
        else:
            fresh = np.empty(shape, view.dtype)
            self._encode(fresh, result)
            view[mask] = fresh[mask]

    def add(self, values: Values, result: Array) -> None:
        """Adds numbers to all elements, in FP32."""
        if not self._is_float32:
            self.write(values, result + self.numbers(values))
            return
        if self._watcher is not None:
            self._watcher.reads(self._window, values, None)
            self._watcher.writes(self._window, values, None)
        view = self._window.view(values)
        np.add(self._shaped(result), view, out=view)

    def move(self, values: Values, result: Array, where: Array | None = None) -> None:
        """Writes unconverted elements where the mask is set."""
        view, mask = self._window.view(values), self._mask(where)
        elements = self._shaped(result)
        if self._watcher is not None:
            self._watcher.writes(self._window, values, mask)
        if mask is None:
            view[...] = elements
        else:
            view[mask] = elements[mask]

    def row(self, values: Values) -> int:
        """The first partition of the memory."""
        return self._window.row(values)

    def _shaped(self, result: Array) -> Array:
        """A result for all elements, in the shape of the window."""
        if result.shape != self._window.flat:
            result = np.broadcast_to(result, self._window.flat)
        return result.reshape(self._window.shape)

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
