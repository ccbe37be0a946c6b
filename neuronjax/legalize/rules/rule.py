"""Rules, and the view of a program on which they are evaluated."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from neuronjax.hlo.calls import CallGraph, Path
from neuronjax.hlo.constants import Constants
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.demand import Demands
from neuronjax.legalize.fp64_integers import Fp64Integers
from neuronjax.legalize.integer_ranges import IntegerRanges
from neuronjax.legalize.policy import Policy
from neuronjax.machine.machine import Machine
from neuronjax.options import Version

ALWAYS: Version = (0,)
NEVER: Version = (1 << 30,)
NEWEST_CORE = 1 << 30
DYNAMIC = "dynamic shape"
"""Represents the element type of values whose shapes are not static."""


class Severity(enum.IntEnum):
    """How certain it is that the program fails or differs on the device."""

    NOTE = 1
    """It runs, and some numbers may differ."""
    WARNING = 2
    """It is documented or reported to fail or go wrong sometimes."""
    ERROR = 3
    """It does not compile."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Cores:
    """The cores of a program's replicas: ``ids[r]`` is the logical core of replica ``r``."""

    machine: Machine
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A per-core program under the check, inside its MLIR context."""

    module: ir.Module
    policy: Policy
    cores: Cores | None = None
    """``None`` if unknown; then rules about wiring are silent."""
    _elements: dict[ir.Type, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def graph(self) -> CallGraph:
        return CallGraph(self.module)

    @cached_property
    def constants(self) -> Constants:
        return Constants(self.graph)

    @cached_property
    def integer_ranges(self) -> IntegerRanges:
        return IntegerRanges(self.graph)

    @cached_property
    def demands(self) -> Demands:
        return Demands(self.graph)

    @cached_property
    def fp64_integers(self) -> Fp64Integers:
        return Fp64Integers(self.module)

    def elements(self, values: Iterable[ir.Value]) -> frozenset[str]:
        """The MLIR element types of values, or ``DYNAMIC``."""
        types: frozenset[str] = frozenset()
        for value in values:
            types |= self._elements_of(value.type)
        return types

    def _elements_of(self, type_: ir.Type) -> frozenset[str]:
        known = self._elements.get(type_)
        if known is None:
            known = self._elements[type_] = frozenset(_element_names(type_))
        return known


def _element_names(type_: ir.Type) -> Iterable[str]:
    if isinstance(type_, ir.RankedTensorType):
        yield str(type_.element_type)
        if not type_.has_static_shape or "bounds" in str(type_.encoding):
            yield DYNAMIC


@dataclass(frozen=True)
class Site:
    """An op of a program, reached along a call path."""

    program: Program
    op: ir.Operation
    path: Path

    @property
    def policy(self) -> Policy:
        return self.program.policy

    @cached_property
    def elements(self) -> frozenset[str]:
        """The element types of the op's operands and results."""
        return self.program.elements([*self.op.operands, *self.op.results])

    def constant(self, value: ir.Value) -> np.ndarray | None:
        """The integers of a value as a numpy array; ``None`` if unknown at compile time."""
        return self.program.constants.value(value, self.path)

    def scalar(self, value: ir.Value) -> int | None:
        """The integer that all elements of a value are equal to; ``None`` if there is none."""
        return self.program.constants.scalar(value, self.path)

    def origin(self, value: ir.Value) -> tuple[ir.Value, Path]:
        """The op that makes a value, and the call path to it."""
        return self.program.graph.origin(value, self.path)


Check = Callable[[Site], str | None]
"""Op -> what is wrong with it in a few words (may be empty), or ``None`` if nothing is."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A limitation or deviation of the compiler or the runtime."""

    code: str
    """The compiler's code without ``NCC_``; where there is none, a name that begins with ``JAX_``
    (JAX NeuronX known issues) or ``RT_`` (runtime documentation)."""
    also: tuple[str, ...] = ()
    """Other codes under which some releases of the compiler report it."""
    what: str
    """A short name, one per rule."""
    message: str
    """The compiler's message, as published."""
    remedy: str
    """What to do, as a sentence."""
    source: str
    """The public document."""
    ops: frozenset[str] = frozenset()
    """The ops to which it applies; empty: every op."""
    elements: frozenset[str] = frozenset()
    """The element types to which it applies; empty: every type."""
    check: Check = lambda site: ""
    """Evaluated on ops for which ``ops`` and ``elements`` match."""
    severity: Severity = Severity.ERROR
    cores: tuple[int, int] = (1, NEWEST_CORE)
    """The first and the last NeuronCore generation for which it holds."""
    sdks: tuple[Version, Version] = (ALWAYS, NEVER)
    """The first Neuron SDK for which it holds, and the first for which it does not."""

    @property
    def label(self) -> str:
        """The code as it is printed."""
        return self.code if self.code.startswith(("JAX_", "RT_")) else f"NCC_{self.code}"

    def holds_for(self, policy: Policy) -> bool:
        """Whether the chip and the SDK have the limitation."""
        first, last = self.cores
        since, until = self.sdks
        return first <= policy.core_version <= last and since <= policy.sdk < until


def stablehlo(*names: str) -> frozenset[str]:
    """Op names of the StableHLO dialect."""
    return frozenset(f"stablehlo.{name}" for name in names)
