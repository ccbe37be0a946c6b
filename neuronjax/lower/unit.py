"""What grows while a program is lowered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.lower.rates import Rates
from neuronjax.lower.tuning import Tuning
from neuronjax.lower.values.storage import storage_of, stored
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Buffer, Kind, Memory, Register
from neuronjax.program.program import Alias, Function, Target


@dataclass
class Unit:
    """A program in the making: buffers, functions, registers."""

    target: Target
    tuning: Tuning
    rates: Rates
    buffers: dict[str, Buffer] = field(default_factory=dict)
    functions: dict[Any, Function] = field(default_factory=dict)
    #: Names of those that depend on variables of loops around their calls.
    bound: set[str] = field(default_factory=set)
    registers: dict[str, Register] = field(default_factory=dict)
    aliases: list[Alias] = field(default_factory=list)
    constants: dict[Any, Buffer] = field(default_factory=dict)
    names: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    ranks: int = 1

    def name(self, stem: str) -> str:
        """A new name for buffers, kernels and registers."""
        self.names[stem] += 1
        return f"{stem}_{self.names[stem]}"

    def buffer(
        self,
        shape: Sequence[int],
        dtype: ElementType,
        stem: str = "v",
        kind: Kind = Kind.SCRATCH,
        data: bytes | None = None,
    ) -> Buffer:
        """A new HBM buffer."""
        buffer = Buffer(
            name=self.name(stem), memory=Memory.HBM, dtype=dtype, shape=tuple(shape), kind=kind,
            data=data,
        )  # fmt: skip
        self.buffers[buffer.name] = buffer
        return buffer

    def root_of(self, name: str) -> str:
        """The buffer that a buffer is declared to share memory with, or itself."""
        return next((alias.of for alias in self.aliases if alias.buffer == name), name)

    def constant(self, array: np.ndarray) -> Buffer:
        """A buffer with the elements of a dense array; equal constants share one."""
        storage = storage_of(array.dtype)
        data = np.ascontiguousarray(stored(array)).tobytes()
        key = (array.shape, storage, data)
        if key not in self.constants:
            shape = array.shape if storage.words == 1 else (*array.shape, storage.words)
            self.constants[key] = self.buffer(shape, storage.dtype, "c", Kind.CONSTANT, data)
        return self.constants[key]

    def register(self, limit: int | None, stem: str = "r", usual: int | None = None) -> Register:
        """A new register."""
        register = Register(self.name(stem), limit, usual)
        self.registers[register.name] = register
        return register
