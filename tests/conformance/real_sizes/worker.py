"""Estimates programs in a process of its own: `python -m tests.conformance.real_sizes.worker`."""

from __future__ import annotations

import time

from jax import ShapeDtypeStruct
from jax.sharding import PartitionSpec

import neuronjax
from neuronjax.machine.instances import find_instance
from tests.conformance.random_programs.worker import serve
from tests.conformance.real_sizes.checks import Estimated
from tests.conformance.real_sizes.least import least
from tests.conformance.real_sizes.program import SizedProgram

_CHARACTERS = 600


def answer(program: SizedProgram) -> Estimated | str:
    """What the estimate of a program says, or what it raised."""
    began = time.process_time()
    arguments = program.arguments
    over = {}
    if program.mesh:
        specs = tuple(PartitionSpec(*program.splits[name]) for name in arguments)
        over = {"mesh": program.mesh, "in_specs": specs}
    given = [ShapeDtypeStruct(a.shape, a.dtype) for a in arguments.values()]
    try:
        estimate = neuronjax.estimate(program.step, *given, target=program.machine, **over)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_CHARACTERS]
    seconds = time.process_time() - began
    tensor = find_instance(program.machine).chip.core.tensor
    peaks = {dtype: estimate.lnc * tensor.flops(dtype) for dtype in tensor.rates}
    return Estimated(
        time_ns=estimate.step_ns - estimate.launch_ns,
        roofline_ns=least(program).time_ns(estimate.max_hbm_bandwidth, peaks),
        cpu_seconds=seconds,
        busiest=estimate.bottleneck,
    )


if __name__ == "__main__":
    serve(answer)
