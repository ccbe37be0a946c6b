"""A machine with slow cores or links, as seen by programs on some of its cores."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from neuronjax.errors import ConfigurationError
from neuronjax.faults import AtStep, Fault, SlowCore, SlowLink, format_fault
from neuronjax.machine.machine import Machine
from neuronjax.machine.specs import CoreSpec
from neuronjax.machine.topology import Axis


def slowed(machine: Machine, faults: Iterable[Fault], cores: Collection[int]) -> Machine:
    """`machine` for a program on `cores`, ids of its logical cores.

    All cores of a program synchronise in its collectives, so it is as slow as its slowest core: the
    clocks of all cores are divided by the greatest factor. A ring is as slow as its slowest link,
    so the bandwidth of all links of an axis is divided by the factor of a slow one. Memories keep
    their speed.

    ConfigurationError: the machine has no such links.
    """
    faults = tuple(faults)
    for fault in faults:
        if isinstance(fault, SlowLink):
            machine = _with_slow_axis(machine, fault)
    slow = (fault for fault in faults if isinstance(fault, SlowCore) and fault.core in cores)
    factor = max((slow_core.factor for slow_core in slow), default=1.0)
    return machine if factor == 1 else _with_slow_cores(machine, factor)


def check_faults(machine: Machine, faults: Iterable[Fault]) -> None:
    """ConfigurationError: faults name cores or links that the machine lacks, or no slowness."""
    for fault in faults:
        if isinstance(fault, SlowCore):
            check_core(fault, machine, machine.core_count)
        elif isinstance(fault, SlowLink):
            slowed(machine, [fault], ())
        else:
            raise ConfigurationError(
                f"fault {format_fault(fault)!r} takes no time, and nothing runs here; give "
                "slow_core or slow_link, or inject it while programs run (neuronjax.inject_faults)."
            )


def check_core(fault: AtStep | SlowCore, machine: Machine, cores: int) -> None:
    """ConfigurationError: a fault names a core beyond the number of `cores`."""
    if fault.core >= cores:
        raise ConfigurationError(
            f"fault {format_fault(fault)!r} names core {fault.core}; {machine} has cores 0 to "
            f"{cores - 1} here."
        )


def _with_slow_axis(machine: Machine, fault: SlowLink) -> Machine:
    topology = machine.topology
    linked = [axis.name for axis in topology.axes if axis.link_bandwidth]
    if fault.axis not in linked:
        there = f"along {', '.join(linked)}" if linked else "of no axis"
        raise ConfigurationError(
            f"fault {format_fault(fault)!r} names the links along {fault.axis!r}; {machine} has "
            f"links {there}."
        )

    def changed(axis: Axis) -> Axis:
        if axis.name != fault.axis:
            return axis
        return replace(axis, link_bandwidth=math.ceil(axis.link_bandwidth / fault.factor))

    axes = tuple(map(changed, topology.axes))
    instance = replace(machine.instance, topology=replace(topology, axes=axes))
    return Machine(instance, machine.lnc)


def _with_slow_cores(machine: Machine, factor: float) -> Machine:
    core = machine.chip.core
    engines = {
        name: replace(engine, clock_hz=_divide(engine.clock_hz, factor))
        for name, engine in core.engines.items()
    }
    tensor = replace(
        core.tensor, clock_hz=_divide(core.tensor.clock_hz, factor), published_tflops={}
    )
    slow: CoreSpec = replace(
        core,
        base_clock_hz=_divide(core.base_clock_hz, factor),
        tensor=tensor,
        engines=engines,
    )
    chip = replace(machine.chip, core=slow, published_tflops={})
    return Machine(replace(machine.instance, chip=chip), machine.lnc)


def _divide(clock_hz: int, factor: float) -> int:
    return max(1, round(clock_hz / factor))
