"""What the trust in an estimate depends on, read off its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.machine.machine import Machine
from neuronjax.planning.measure import Measurement, Setting
from neuronjax.timing.calibration import CALIBRATION
from neuronjax.timing.ranges import Traits


def traits_of(measurement: Measurement, setting: Setting, is_extrapolated: bool) -> Traits:
    """The traits of a measured program; whether two shallower models stand for it is given."""
    machine, numbers = setting.machine, measurement.numbers
    core = machine.chip.core
    total = numbers["total_ns"]
    ridge = core.tensor.flops("bfloat16") / machine.chip.hbm_bandwidth_per_core
    flops, nbytes = numbers["model_flops"], numbers["hbm_traffic"]
    return Traits(
        chip=machine.chip.name,
        ranks=measurement.ranks,
        intensity=flops / nbytes / ridge if nbytes else 0.0,
        is_training=_is_training(numbers),
        is_one_kernel=numbers["kernels"] == 1,
        collective_share=numbers.get("busy.collective", 0.0) / total,
        host_share=numbers.get("busy.host", 0.0) / total,
        tensor_share=numbers.get("busy.tensor", 0.0) / total,
        narrow_rate=measurement.narrow_rate,
        is_extrapolated=is_extrapolated,
        is_changed=_is_changed(setting),
        assumed=core.assumed,
    )


def _is_training(numbers: Mapping[str, float]) -> bool:
    """Whether a step keeps the state of an optimizer, or returns as much as it has weights: their
    gradients."""
    weights = numbers.get("memory.weights", 0.0)
    has_gradients = 0 < weights <= numbers.get("memory.results", 0.0)
    return has_gradients or numbers.get("memory.optimizer", 0.0) > 0


def _is_changed(setting: Setting) -> bool:
    """Whether the user changed records of the machine, or constants of the timing model."""
    machine = setting.machine
    return (
        setting.calibration != CALIBRATION
        or machine.instance != Machine.create(machine.target, machine.lnc).instance
    )
