"""A kernel that is compiled for arguments of certain shapes and dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronjax.emulate import core
from neuronjax.native_kernels import NativeKernel
from neuronjax.nki.arrays import seen_as
from neuronjax.nki.precision import widened
from neuronjax.nki.tensor import Tensor
from neuronjax.program import program
from neuronjax.program.operand import Kind


@dataclass(frozen=True, repr=False)
class Compiled:
    """A kernel for arguments of certain shapes and dtypes."""

    program: program.Program
    #: What the kernel returned: a tensor, a tuple, list or dict of tensors, or None.
    returned: Any
    #: Tensor -> `file:line` that declared it.
    declared: Mapping[str, str]
    #: Position among the arrays -> the result that an array becomes which the kernel writes to or
    #: returns.
    written: Mapping[int, str]
    #: Positions of those that it writes to.
    changed: frozenset[int] = frozenset()
    #: What a user may want to know: loops that are written out, and why.
    notes: tuple[str, ...] = ()
    #: The programs that run beside each other, as in `Kernel.grid`.
    grid: tuple[int, ...] = ()

    def __repr__(self) -> str:
        """What it is for and what it returns; `program` has the instructions."""
        return f"{self.program.name} for {self.program.target.chip}, returns {self.returned!r}"

    def unreturned(self) -> list[int]:
        """Positions of the arrays that it writes to and does not return."""
        tensors = {tensor.storage.name for tensor in jax.tree.leaves(self.returned)}
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        return [position for position in self.changed if inputs[position] not in tensors]

    @cached_property
    def native(self) -> NativeKernel:
        """The kernel as a function of its arrays and nothing else."""
        inputs = [b.name for b in self.program.buffers if b.kind is Kind.ARGUMENT]
        written = {inputs[position]: name for position, name in self.written.items()}
        names = [tensor.storage.name for tensor in jax.tree.leaves(self.returned)]
        return NativeKernel(
            program=self.program,
            results=tuple(written.get(name, name) for name in names),
            grid=self.grid,
            declared=self.declared,
        )

    def widened(self) -> Compiled:
        """The kernel with FP32 numbers in the place of BF16 and FP8, also among its arrays.

        KernelError: bits of such a number are read as another type.
        """
        return dataclasses.replace(self, program=widened(self.program))

    def run(self, arrays: Sequence[np.ndarray], order: core.Order | None = None) -> Any:
        """The results of a kernel of one rank, as it returned them, by the emulator.

        Raises ``ExecutionError`` with the kernel's lines.
        """
        return self.run_in_place([arrays], order)[0][0]

    def run_in_place(
        self,
        arrays: Sequence[Sequence[np.ndarray]],
        order: core.Order | None = None,
        record_to: str | Path | None = None,
    ) -> list[tuple[Any, Mapping[int, np.ndarray]]]:
        """The results of each rank, and by their positions the new values of arrays that it writes
        to. ``neuronjax replay`` reads the file `record_to`.

        Raises as `run` does.
        """
        native = self.native
        by_rank = native.run(arrays, order, record_to)
        return [self._returned(native, results) for results in by_rank]

    def _returned(
        self, native: NativeKernel, results: Mapping[str, np.ndarray]
    ) -> tuple[Any, Mapping[int, np.ndarray]]:
        names = iter(native.results)

        def value(tensor: Tensor) -> np.ndarray:
            return seen_as(tensor, results[next(names)])

        returned = jax.tree.map(value, self.returned)
        return returned, {place: results[self.written[place]] for place in self.changed}
