"""What a run's checks say, as the errors of the Neuron runtime.

Status names and numbers are those of ``nrt_status.h``; the words for indices are the runtime's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuronjax.compiler import CompiledProgram
from neuronjax.errors import ExecutionError, NumericalError, OutOfBoundsError
from neuronjax.legalize.checks import NAN, OUT_OF_BOUNDS, Check
from neuronjax.runtime.value import ShardedValue


def failure(
    program: CompiledProgram, flags: Sequence[int], results: Sequence[ShardedValue]
) -> ExecutionError | None:
    """The error that the cores' flags tell of, if any; see ``CompiledProgram.checks``.

    Of several cores' errors it is the one that comes first in the program: what a collective
    brought from another core began there.
    """
    failed = [(flag, core) for core, flag in enumerate(flags) if flag]
    if not failed:
        return None
    flag, core = min(failed)
    check = program.checks[flag - 1]
    where = f"program {program.signature.name!r} on core {core} of {len(flags)}"
    return _ERRORS[check.kind](check, where, results)


def _numerical_error(check: Check, where: str, results: Sequence[ShardedValue]) -> ExecutionError:
    reached = ", ".join(str(index) for index, value in enumerate(results) if _has_nan(value))
    outcome = f"result {reached} of the program has NaN" if reached else "no result has NaN"
    return NumericalError(
        f"NRT_EXEC_COMPLETED_WITH_NUM_ERR (status 1003): {check.op} at {check.source} made NaN of "
        f"numbers in {where}; {outcome}. neuronjax.nan_report(function, *arguments) shows the "
        "operands and the iteration; unset NEURON_FAIL_ON_NAN and "
        "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY to let NaN pass."
    )


def _out_of_bounds(check: Check, where: str, results: Sequence[ShardedValue]) -> ExecutionError:
    return OutOfBoundsError(
        "NRT_EXEC_OOB (status 1006): failed to run scatter/gather (indirect memory copy via vector "
        f"DGE), due to out-of-bound access: {check.op} at {check.source} in {where}. Correct the "
        "indices, or clamp them first with jnp.clip: the device does not clamp, drop or fill as "
        "XLA does. Unset NEURONJAX_FAIL_ON_OUT_OF_BOUNDS to let it pass here."
    )


_ERRORS: dict[str, Callable[[Check, str, Sequence[ShardedValue]], ExecutionError]] = {
    NAN: _numerical_error,
    OUT_OF_BOUNDS: _out_of_bounds,
}


def _has_nan(value: ShardedValue) -> bool:
    if value.spec.tensor.dtype.kind not in "fcV":
        return False
    cores = range(len(value.spec.placement))
    return any(bool(np.isnan(value.numpy(core)).any()) for core in cores)
