"""A program's time on the device, as reported by a platform that emulates one."""

import math
from typing import Any, NamedTuple


class DeviceTime(NamedTuple):
    """The time of one run of a program on the device."""

    seconds: float
    mfu: float  # share of the device's peak that the model asks for
    assumed: str = ""  # what the platform says of it, such as work that the host does

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:.3g} ms on the device, MFU {100 * self.mfu:.3g}%"


def device_time(compiled: Any, model_flops: float | None = None) -> DeviceTime | None:
    """The device time of a `jax.stages.Compiled`; None where the platform does not simulate.

    Platforms report it in their cost analysis: `optimal_seconds`, and `mfu_estimated_percent` of
    the program's `flops`. `model_flops` are a core's share of what the model asks for, where that
    is less: programs compute some of it again, or on several cores. None: the program's.
    """
    cost = compiled.cost_analysis() or {}
    seconds, percent = cost.get("optimal_seconds", 0.0), cost.get("mfu_estimated_percent")
    if percent is None or not seconds > 0 or not math.isfinite(seconds):
        return None
    program_flops = cost.get("flops", 0.0)
    if model_flops is not None and program_flops > 0:
        percent *= model_flops / program_flops
    return DeviceTime(seconds, percent / 100, cost.get("assumed", ""))
