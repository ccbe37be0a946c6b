"""`neuronjax.compare`: compares a function in the chip's numerics with the same function in FP64.

The program that the host executor would run is compiled once, with a wider computation added to it
op by op, and with host callbacks that pass three values of every op to Python: the chip's, that of
the wider op on the chip's operands, and that of the wide run. The measured program is therefore the
partitioned and rewritten one, with its loops, branches and collectives, on as many emulated cores
as its mesh has. Interpreting op by op would be simpler, but would see neither the partitioner's
program nor cores whose control flow differs, and would pay a dispatch per op and iteration;
comparing two separate runs would have to keep every value of both.

The watched ops are those of the program before it gets the chip's numerics, where they correspond
to the user's ops; their values are those with the chip's numerics. The wider ops are hidden from
that step (``library.py``). Arguments and constants are exact: the wide run begins with the chip's
numbers, widened. The program runs twice, so host callbacks are called twice, and values that differ
between the runs are reported as non-deterministic instead of being taken for errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronjax.accuracy.comparison import Comparison
from neuronjax.accuracy.library import Library
from neuronjax.accuracy.program import instrument, lower, policy_for
from neuronjax.accuracy.records import Records
from neuronjax.accuracy.shadow import insert_shadows
from neuronjax.accuracy.sites import Site, Visit, Watcher
from neuronjax.accuracy.walk import Place
from neuronjax.accuracy.widen import REFERENCES, Widening
from neuronjax.errors import ConfigurationError, NonDeterministicError
from neuronjax.hlo.structure import inline_calls
from neuronjax.jaxlib_api.mlir import ir
from neuronjax.legalize.op_kinds import type_text


def compare(
    function: Callable[..., object],
    *arguments: object,
    target: str | None = None,
    reference: str = "float64",
    divergence_ulps: float = 1.0,
    **switches: object,
) -> Comparison:
    """Runs ``function(*arguments)`` in the chip's numerics and in wider floats, and compares both.

    Args:
      function: any JAX function, jitted or not, on one device or on a mesh.
      arguments: its arguments; their shardings apply as in a call.
      target: the instance whose chip to emulate; by default the one of the options.
      reference: ``float64``, or ``float32``, which widens neither FP32 nor FP64.
      divergence_ulps: accumulated error, in units in the last place of a result's type, beyond
        which the runs count as divergent.
      switches: options for this run, by the field names of ``neuronjax.options.Options``, such as
        ``cc_flags="--auto-cast=all"``.

    Raises:
      ConfigurationError: unknown reference, target or option.
      NonDeterministicError: two runs differ, so that errors could not be told from noise.
      UnsupportedProgramError: ordered effects.
    """
    if reference not in REFERENCES:
        raise ConfigurationError(
            f"reference={reference!r} is not allowed; it must be one of {', '.join(REFERENCES)}."
        )
    policy = policy_for(target, switches)
    if policy.stochastic_rounding:
        raise NonDeterministicError(
            "stochastic rounding is on, so that no two runs agree; compare without it "
            "(stochastic_rounding=False, or unset NEURON_RT_STOCHASTIC_ROUNDING_EN)."
        )
    lowered = lower(function, arguments, target)
    records = Records(divergence_ulps)
    comparing = _Comparing(REFERENCES[reference], lowered.cores, records)
    instrumented = instrument(lowered, policy, comparing)
    instrumented.run()
    records.repeat()
    instrumented.run()
    records.require_same()
    return records.summary(policy.chip, reference, lowered.cores)


class _Comparing:
    """Adds the wider computation to a program before it gets the chip's numerics."""

    def __init__(self, element: str, cores: int, records: Records) -> None:
        self._element = element
        self._watcher = Watcher(cores)
        self._records = records

    def before(self, module: ir.Module) -> None:
        inline_calls(module)
        self._library = Library()
        insert_shadows(module, Widening(self._element), self._library, self)

    def after(self, module: ir.Module) -> None:
        self._library.expand(module)

    def result(self, place: Place, index: int, chip: Any, local: Any, shadow: Any) -> None:
        type_ = type_text(chip)

        def watch(visit: Visit, values: list[np.ndarray]) -> None:
            self._records.result(visit, index, type_, values)

        self._watcher.watch(place.site, place.counters, [chip, local, shadow], watch)

    def decision(self, place: Place, chip: Any, shadow: Any) -> None:
        self._watcher.watch(place.site, place.counters, [chip, shadow], self._records.decision)

    def output(self, order: int, index: int, chip: Any, shadow: Any) -> None:
        type_ = type_text(chip)

        def watch(visit: Visit, values: list[np.ndarray]) -> None:
            self._records.output(index, type_, values)

        self._watcher.watch(Site(order, "return", ""), (), [chip, shadow], watch)
