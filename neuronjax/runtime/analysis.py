"""The time and memory of a compiled program on the device; lowered and timed on first use."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from neuronjax.compiler import CompiledProgram
from neuronjax.errors import UnsupportedProgramError
from neuronjax.host.client import HostExecutable
from neuronjax.lazy import Lazy
from neuronjax.machine.machine import Machine

if TYPE_CHECKING:
    from neuronjax.planning import flops, measure
    from neuronjax.runtime import engine
else:
    flops = Lazy("neuronjax.planning.flops")
    measure = Lazy("neuronjax.planning.measure")
    engine = Lazy("neuronjax.runtime.engine")

logger = logging.getLogger("neuronjax.analysis")


@dataclass
class Analysis:
    """A program of `ranks` cores on a machine."""

    program: CompiledProgram
    ranks: int
    machine: Machine
    host: HostExecutable

    @cached_property
    def outcome(self) -> measure.Measurement | str:
        """The program's time and memory; a text, also logged, if the program cannot be lowered or
        the chip cannot be timed."""
        setting = measure.Setting(machine=self.machine)
        try:
            if isinstance(self.host, engine.EngineExecutable):
                lowered = self.host.program
            else:
                lowered = measure.arrange(self.program, self.ranks, setting).complete()
            return measure.measure_lowered(lowered, self.program, self.ranks, setting)
        except Exception as error:  # programs must run although their time is unknown
            name = self.program.signature.name
            reason = f"time and memory of program {name} cannot be estimated: {error}"
            logger.warning("%s", reason)
            return reason

    def cost(self, is_timed: bool = True) -> dict[str, float | str]:
        """Cost analysis under XLA's and Neuron Explorer's names, per core and run: the keys that
        ``docs/estimates.md`` lists. Only ``flops`` if the program is not `is_timed`; with the
        reason, if it cannot be.
        """
        if not is_timed:
            return self._flops
        if isinstance(self.outcome, str):
            return {**self._flops, "not estimated": self.outcome}
        numbers, machine = self.outcome.numbers, self.machine
        seconds = numbers["total_ns"] * 1e-9
        peak = machine.lnc * machine.chip.core.tensor.flops("bfloat16") * seconds
        bandwidth = machine.lnc * machine.chip.hbm_bandwidth_per_core * seconds
        assumed = "; ".join(self.outcome.assumed)
        return {
            "flops": numbers["model_flops"],
            "bytes accessed": numbers["hbm_traffic"],
            "optimal_seconds": seconds,
            "mfu_estimated_percent": 100 * numbers["model_flops"] / peak,
            "hfu_estimated_percent": 100 * numbers["hardware_flops"] / peak,
            "mbu_estimated_percent": 100 * numbers["hbm_traffic"] / bandwidth,
            **({"assumed": assumed} if assumed else {}),
        }

    @property
    def _flops(self) -> dict[str, float | str]:
        return {"flops": float(flops.model_flops(self.program.per_core))}

    def temporaries(self) -> int:
        """Bytes of HBM for values between kernels.

        UnsupportedProgramError: they cannot be estimated.
        """
        if isinstance(self.outcome, str):
            raise UnsupportedProgramError(self.outcome)
        return round(self.outcome.numbers["memory.scratch"])
