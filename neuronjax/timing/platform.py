"""What a program is timed on: a chip, the machine about it, and fitted constants."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.machine.specs import ChipSpec, CoreSpec, Engine
from neuronjax.machine.timings import TIMINGS, Timings
from neuronjax.program.program import Program
from neuronjax.timing.calibration import CALIBRATION, Calibration

GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A chip at one logical-core configuration, one of whose cores runs the program.

    `busy_cores` of the chip's physical cores stream from device memory at once (None: all), which
    share its bandwidth. `machine` is needed for collectives only.
    """

    chip: ChipSpec
    lnc: int = 1
    machine: Machine | None = None
    busy_cores: int | None = None
    calibration: Calibration = CALIBRATION
    timings: Timings = field(hash=False)

    @classmethod
    def of(
        cls,
        program: Program,
        machine: Machine | None = None,
        *,
        busy_cores: int | None = None,
        calibration: Calibration = CALIBRATION,
    ) -> Platform:
        """The platform that a program is for.

        `machine` None takes the smallest one with such chips that has the program's ranks, or
        several of the largest.
        UnsupportedProgramError: AWS publishes too little about the chip.
        """
        chip = program.target.chip_spec if machine is None else machine.chip
        chip.check_published()
        return cls(
            chip=chip,
            lnc=program.target.lnc,
            machine=machine or smallest_machine(chip, program.target.lnc, program.ranks),
            busy_cores=busy_cores,
            calibration=calibration,
            timings=TIMINGS[chip.core.version],
        )

    @property
    def core(self) -> CoreSpec:
        """The physical core."""
        return self.chip.core

    def ns(self, cycles: float, engine: Engine) -> float:
        """Cycles of an engine in ns. KeyError: the generation has no such engine."""
        return cycles * GIGA / self.core.clock_hz(engine)

    @property
    def hbm_bytes_per_ns(self) -> float:
        """Device memory bandwidth of one physical core, its share while `busy_cores` stream.

        A stack serves neighbouring cores (`ChipSpec.hbm_stack`), which are busy one after the
        other: a core has its stack to itself only while its neighbours there are idle.
        """
        hbm = self.chip.hbm
        sharing = min(self.busy_cores or self.chip.cores, self.chip.cores // hbm.stacks)
        return hbm.bandwidth / hbm.stacks / sharing / GIGA

    @property
    def dma_bytes_per_ns(self) -> float:
        """Sustained bandwidth of one DMA engine."""
        return self.core.dma.engine_bandwidth / GIGA


def smallest_machine(chip: ChipSpec, lnc: int, ranks: int) -> Machine | None:
    """The machine with the fewest cores, but at least `ranks`; else the largest, of several.

    None: no machine has such chips at that configuration.
    """
    sizes = sorted(
        (instance.logical_cores(lnc), instance.name)
        for instance in INSTANCES.values()
        if instance.chip.name == chip.name and lnc in chip.allowed_lncs
    )
    if not sizes:
        return None
    enough = [size for size in sizes if size[0] >= ranks]
    return Machine.create((enough or sizes[-1:])[0][1], lnc)
