"""`neuronjax.nan_report`: the op that made the first NaN or infinity of a program.

The program runs in the chip's numerics, with a host callback after every op that computes floats
(``compare.py`` explains why). The callback inspects the op's results and, unless they are all
finite, its operands.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from neuronjax.accuracy.library import Library
from neuronjax.accuracy.program import Lowered, instrument, lower, policy_for
from neuronjax.accuracy.sites import Site, Visit, Watcher
from neuronjax.accuracy.walk import Place, Walk
from neuronjax.display import Displayed, Table
from neuronjax.hlo.structure import inline_calls
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.emit import after, is_tensor
from neuronjax.legalize.op_kinds import computes, from_outside, is_float, literal_of


@dataclass(frozen=True)
class Range:
    """The range of an operand, result or argument; parts of complex numbers count separately."""

    dtype: str
    shape: tuple[int, ...]
    min: float | None
    """Least finite number; ``None`` if there is none."""
    max: float | None
    nans: int
    infs: int

    @property
    def finite(self) -> bool:
        return not self.nans and not self.infs

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        span = "nothing finite" if self.min is None else f"{self.min:.6g} to {self.max:.6g}"
        return f"{self.dtype}[{shape}]: {span}, {self.nans} NaN, {self.infs} Inf"


@dataclass(frozen=True, repr=False)
class NanReport(Displayed):
    """An op that made NaN of numbers, or Inf of finite ones.

    ``op`` is ``argument`` if an argument of the function has the NaN or Inf, and ``constant`` if it
    comes from a constant of the program, such as a mask's -inf.
    """

    kind: str
    """``NaN`` or ``Inf``."""
    op: str
    source: str
    """``file:line`` in the user's code; which argument, or which result has the constant."""
    operands: tuple[Range, ...]
    results: tuple[Range, ...]
    core: int
    cores: int
    iterations: tuple[int, ...]
    """Iteration of each loop around the op, from 0, outermost first."""
    first_nan: NanReport | None = None
    """The first op that made NaN, if this one made Inf."""

    def to_json(self) -> str:
        """The whole report as JSON text."""
        return json.dumps(asdict(self))

    def parts(self) -> Iterator[str | Table]:
        yield self._headline()
        yield Table([*_rows("operand", self.operands), *_rows("result", self.results)])
        if self.first_nan is not None:
            yield from self.first_nan.parts()

    def _headline(self) -> str:
        where = [f"at {self.source}"]
        if self.iterations:
            loops = ", ".join(map(str, self.iterations))
            where.append(f"in iteration {loops} (from 0)")
        if self.cores > 1:
            where.append(f"on core {self.core} of {self.cores}")
        verb = "holds" if self.op in ("argument", "constant") else "made"
        return f"{self.op} {verb} the first {self.kind} {' '.join(where)}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))


def _rows(name: str, ranges: Sequence[Range]) -> Iterator[tuple[str, str]]:
    for number, numbers in enumerate(ranges):
        yield f"{name} {number}", str(numbers)


def nan_report(
    function: Callable[..., object],
    *arguments: object,
    target: str | None = None,
    **switches: object,
) -> NanReport | None:
    """Runs ``function(*arguments)`` and finds the op that produced the first NaN or Inf.

    An op is to blame if it produced NaN from operands without NaN, or Inf from finite ones; the
    first one is first in program order, iteration by iteration. A NaN constant in the program, such
    as JAX's fill value for indices out of bounds, is blamed on the op that selects it; an infinite
    constant is taken to be intended. FP32 is rounded to nearest even if stochastic rounding is
    requested.

    Args:
      function: any JAX function, jitted or not, on one device or on a mesh.
      arguments: its arguments; their shardings apply as in a call.
      target: the instance whose chip to emulate; by default the one of the options.
      switches: options for this run, by the field names of ``neuronjax.options.Options``.

    Returns: ``None`` if every number is finite.

    Raises:
      ConfigurationError: unknown target or option.
      UnsupportedProgramError: ordered effects.
    """
    policy = policy_for(target, {**switches, "stochastic_rounding": False})
    lowered = lower(function, arguments, target)
    observer = _NanObserver(lowered.cores)
    instrument(lowered, policy, observer).run()
    return observer.made() or _bad_argument(lowered) or observer.returned()


def _bad_argument(lowered: Lowered) -> NanReport | None:
    for label, value in zip(lowered.labels, lowered.arguments, strict=True):
        numbers = range_of(value)
        if not numbers.finite:
            core, iterations = 0, ()
            return NanReport(
                _kind([numbers]), "argument", label, (), (numbers,), core, lowered.cores, iterations
            )
    return None


class _NanObserver:
    """Inserts the callbacks into a program, and keeps the earliest report of each kind."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._watcher = Watcher(cores)
        self._reports: dict[str, tuple[Visit, NanReport]] = {}
        self._lock = threading.Lock()

    def before(self, module: ir.Module) -> None:
        inline_calls(module)
        self._library = Library()
        Walk(self, self._library).through(module)

    def after(self, module: ir.Module) -> None:
        self._library.expand(module)

    def op(self, op: Any, place: Place) -> None:
        results = [result for result in op.results if is_float(result)]
        operands = [operand for operand in op.operands if is_tensor(operand.type)]
        literal = [is_float(operand) and literal_of(operand) is not None for operand in operands]
        brings_literals = op.name in _CHOICES and any(literal)
        if not results or not (computes(op) or from_outside(op) or brings_literals):
            return

        def watch(visit: Visit, values: list[np.ndarray]) -> None:
            self._look(visit, values[: len(results)], values[len(results) :], literal)

        with after(op):
            self._watcher.watch(place.site, place.counters, [*results, *operands], watch)

    def decision(self, value: Any, place: Place) -> None:
        """Does nothing: control flow makes no floats."""

    def end(self, results: Sequence[Any], order: int) -> None:
        for index, result in enumerate(results):
            if is_float(result):
                site = Site(order, "constant", f"result {index} of the function")
                self._watcher.watch(site, (), [result], self._look_at_result)

    def _look_at_result(self, visit: Visit, values: list[np.ndarray]) -> None:
        numbers = range_of(values[0])
        if not numbers.finite:
            self._note("result", visit, [numbers], [])

    def _look(
        self,
        visit: Visit,
        results: list[np.ndarray],
        operands: list[np.ndarray],
        literal: list[bool],
    ) -> None:
        if all(np.isfinite(result).all() for result in results):
            return
        made, given = ([range_of(value) for value in values] for values in (results, operands))
        had = any(operand.nans for operand, fixed in zip(given, literal, strict=True) if not fixed)
        if any(result.nans for result in made) and not had:
            self._note("NaN", visit, made, given)
        elif any(result.infs for result in made) and all(operand.finite for operand in given):
            self._note("Inf", visit, made, given)

    def _note(self, kind: str, visit: Visit, made: list[Range], given: list[Range]) -> None:
        report = NanReport(
            kind=_kind(made),
            op=visit.site.op,
            source=visit.site.source,
            operands=tuple(given),
            results=tuple(made),
            core=visit.core,
            cores=self._cores,
            iterations=visit.iterations,
        )
        with self._lock:
            known = self._reports.get(kind)
            if known is None or _moment(visit) < _moment(known[0]):
                self._reports[kind] = (visit, report)

    def made(self) -> NanReport | None:
        """The first op to blame."""
        reports = [self._reports[kind] for kind in ("NaN", "Inf") if kind in self._reports]
        if not reports:
            return None
        _, first = min(reports, key=lambda item: _moment(item[0]))
        nan = self._reports.get("NaN")
        return replace(first, first_nan=nan[1]) if nan and first.kind == "Inf" else first

    def returned(self) -> NanReport | None:
        """A result that is not finite, whichever op is to blame."""
        return self._reports["result"][1] if "result" in self._reports else None


def _kind(ranges: Sequence[Range]) -> str:
    return "NaN" if any(values.nans for values in ranges) else "Inf"


def _moment(visit: Visit) -> tuple[tuple[int, ...], int]:
    return visit.when, visit.core


_CHOICES = frozenset(
    f"stablehlo.{name}" for name in ("select", "pad", "concatenate", "dynamic_update_slice")
)
"""Ops that select constants among other numbers."""


def range_of(values: np.ndarray) -> Range:
    """The range of an array's numbers."""
    parts = values.view(values.real.dtype) if values.dtype.kind == "c" else values
    numbers = parts.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    return Range(
        dtype=values.dtype.name,
        shape=values.shape,
        min=float(finite.min()) if finite.size else None,
        max=float(finite.max()) if finite.size else None,
        nans=int(np.isnan(numbers).sum()),
        infs=int(np.isinf(numbers).sum()),
    )
