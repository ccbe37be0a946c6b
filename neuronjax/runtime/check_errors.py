"""Turns failed checks of a run into the errors of the Neuron runtime.

Status names and numbers are those of ``nrt_status.h``; messages about indices are the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from neuronjax.compiler import CompiledProgram
from neuronjax.errors import ExecutionError, NumericalError, OutOfBoundsError
from neuronjax.hlo.module import type_text
from neuronjax.legalize.checks import Checks
from neuronjax.runtime.value import ShardedValue, error_of


@dataclass(frozen=True)
class Before:
    """What is known about the arguments of a checked run."""

    error: BaseException | None
    """The error of an earlier run, which an argument carries."""
    nan: bool
    """Whether an argument has NaN, if that matters."""


def before(checks: Checks, arguments: Sequence[ShardedValue]) -> Before:
    """Inspects the arguments of a checked run; waits for them if NaN matters."""
    error = error_of(arguments)
    if error is not None or not checks.nan:
        return Before(error, False)
    try:
        return Before(None, any(value.has_nan() for value in arguments))
    except jax.errors.JaxRuntimeError:  # the run of an argument failed, and so will this one
        return Before(None, False)


def failure(
    program: CompiledProgram,
    flags: Sequence[Sequence[int]],
    nan_before: bool,
    results: Sequence[ShardedValue],
) -> ExecutionError | None:
    """The error of a run if one of its checks failed.

    ``flags`` are the result ``FLAGS`` of each core. If several cores failed, the error is the one
    that comes first in the program, since collectives pass bad values on to other cores.
    """
    explained = nan_before or any(literal for _, _, literal in flags)
    nan, index = (_first(flags, which) for which in (0, 1))
    if index and (explained or not nan or index < nan):
        return _out_of_bounds(program, *index, len(flags))
    if explained or program.checks is None or not program.checks.nan:
        return None
    bad = [number for number, value in enumerate(results) if value.has_nan()]
    return _numerical_error(program, nan, bad, len(flags)) if nan or bad else None


def _first(flags: Sequence[Sequence[int]], which: int) -> tuple[int, int] | None:
    """(1 + number of the first check that failed, core)."""
    return min(
        ((core_flags[which], core) for core, core_flags in enumerate(flags) if core_flags[which]),
        default=None,
    )


def _numerical_error(
    program: CompiledProgram, nan: tuple[int, int] | None, bad: Sequence[int], cores: int
) -> ExecutionError:
    reports = []
    if bad:
        result = f"result {bad[0]}, {type_text(program.signature.result_types[bad[0]])},"
        further = f" (and results {', '.join(map(str, bad[1:]))})" if len(bad) > 1 else ""
        reports.append(f"{result} has NaN{further}")
    if nan and program.checks:
        check = program.checks.places[nan[0] - 1]
        reports.append(f"NaN reached {check.op} at {check.source} on core {nan[1]} of {cores}")
    return NumericalError(
        "NRT_EXEC_COMPLETED_WITH_NUM_ERR (status 1003): program "
        f"{program.signature.name!r} produced NaN from numbers: {'; '.join(reports)}. "
        "No argument had any. neuronjax.nan_report(function, *arguments) names the op; unset "
        "NEURON_FAIL_ON_NAN and NEURON_RT_NUMERICAL_ERRORS_VERBOSITY to let NaN pass."
    )


def _out_of_bounds(program: CompiledProgram, number: int, core: int, cores: int) -> ExecutionError:
    assert program.checks is not None  # they said so
    check = program.checks.places[number - 1]
    return OutOfBoundsError(
        "NRT_EXEC_OOB (status 1006): failed to run scatter/gather (indirect memory copy via vector "
        f"DGE), due to out-of-bound access: {check.op} at {check.source} in program "
        f"{program.signature.name!r} on core {core} of {cores}. Correct the indices, or clamp them "
        "first with jnp.clip: the device does not clamp, drop or fill as XLA does. Unset "
        "NEURONJAX_FAIL_ON_OUT_OF_BOUNDS to let it pass here."
    )
