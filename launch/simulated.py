"""A program's time on the device, as reported by a platform that emulates one."""

import math
from typing import Any, NamedTuple


class DeviceTime(NamedTuple):
    """The time of one run of a program on the device."""

    seconds: float
    mfu: float  # share of the device's peak that the model's products use

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:.3g} ms on the device, MFU {100 * self.mfu:.3g}%"


def device_time(compiled: Any) -> DeviceTime | None:
    """The device time of a `jax.stages.Compiled`; None where the platform does not simulate.

    Platforms report it in their cost analysis: `optimal_seconds` and `mfu_estimated_percent`.
    """
    cost = compiled.cost_analysis() or {}
    seconds, percent = cost.get("optimal_seconds", 0.0), cost.get("mfu_estimated_percent")
    if percent is None or not seconds > 0 or not math.isfinite(seconds):
        return None
    return DeviceTime(seconds, percent / 100)
