"""Programs for engines, made of per-core programs with the prices of the timing model."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from neuronjax.hlo import module as hlo
from neuronjax.lower import passes
from neuronjax.lower.passes import Known, Pass, Setting
from neuronjax.lower.prices import Move, Price, Prices
from neuronjax.lower.schedule.interleave import Candidate
from neuronjax.lower.schedule.worthwhile import Shares
from neuronjax.lower.tuning import Tuning
from neuronjax.process_settings import seldom_collected
from neuronjax.program.instruction import Instruction
from neuronjax.program.program import Kernel, Program, Target
from neuronjax.timing.encoding import PS, Assumptions, compile_kernel
from neuronjax.timing.platform import Platform
from neuronjax.timing.simulate import simulate
from neuronjax.timing.table import cost_of


@dataclass(frozen=True)
class Arranged:
    """An engine program on the way: its kernels are made, but have no other order yet."""

    program: Program
    setting: Setting

    def count_kernels(self) -> Shares[Candidate]:
        """How often each kind of kernel runs."""
        with seldom_collected:
            return passes.count_kernels(self.program, self.setting)

    def complete(self, to_order: Set[Candidate] | None = None) -> Program:
        """The program with orders of kernels, addresses and semaphores.

        An order is looked for in the kinds `to_order`; None: where it promises enough.

        Raises:
          SbufOverflowError, PsumOverflowError, DeviceMemoryError: something does not fit.
          FailedPassError: a pass left what no core could run.
        """
        with seldom_collected:
            return passes.complete(self.program, replace(self.setting, to_order=to_order))


class LoweringOptions(TypedDict, total=False):
    """Options of `lower_program` and `arrange_program`; defaults are those of `Setting`."""

    #: Whether the program has to fit into its core's HBM.
    check_memory: bool
    #: Whether what every pass leaves is checked, not the finished program alone.
    verify_passes: bool
    #: The numbers that the compiler is free to choose.
    tuning: Tuning
    #: Is shown what each pass leaves.
    watch: Callable[[Pass, Any], None] | None
    #: What programs that share it find for a kernel, they find once.
    known: Known


def lower_program(
    per_core: bytes, target: Target, ranks: int, **options: Unpack[LoweringOptions]
) -> Program:
    """The engine program of a per-core module: lowered, with addresses and semaphores.

    Raises:
      UnsupportedProgramError: an operation that has no lowering.
      SbufOverflowError, PsumOverflowError, DeviceMemoryError: something does not fit.
      FailedPassError: a pass left what no core could run.
    """
    return arrange_program(per_core, target, ranks, **options).complete()


def arrange_program(
    per_core: bytes, target: Target, ranks: int, **options: Unpack[LoweringOptions]
) -> Arranged:
    """The first half of `lower_program`: kernels, split over the cores of LNC 2 and joined.

    Raises:
      UnsupportedProgramError: an operation that has no lowering, or a chip about which AWS
        publishes too little.
      FailedPassError: a pass left what no core could run.
    """
    target.chip_spec.check_published()
    with seldom_collected:
        with hlo.context():
            module = hlo.load(per_core)
            setting = Setting(
                target=target,
                ranks=ranks,
                name=hlo.signature(module).name,
                donations=hlo.donations(module),
                prices=prices_of,
                **options,
            )
            program = passes.lower(module, setting)
        return Arranged(passes.arrange(program, setting), setting)


def prices_of(program: Program) -> Prices:
    """Returns the prices of instructions on the platform that a program is for."""
    return _Prices(Platform.of(program))


@dataclass(frozen=True)
class _Prices:
    """The prices of instructions on a platform, in the form that lowering asks for."""

    platform: Platform

    @property
    def wake_ns(self) -> float:
        return self.platform.calibration.wake_ns

    @property
    def tables_ns(self) -> float:
        return self.platform.calibration.activation_table_ns

    def of(self, instruction: Instruction) -> Price:
        cost = cost_of(instruction, self.platform)
        asked, move = cost.transfer, None
        if asked is not None:
            move = Move(
                work=asked.engine_ns * asked.engines / self.platform.core.dma.engines,
                duration=asked.engine_ns,
                start=asked.start_ns,
                completion=asked.completion_ns,
                interval=asked.interval_ns,
                generator=asked.generator_ns,
            )
        return Price(cost.issue_ns, cost.latency_ns, cost.spread_ns, cost.tables, move)

    def time(self, kernel: Kernel) -> float:
        compiled = compile_kernel(kernel, self.platform, Assumptions())
        return simulate(compiled, self.platform).duration / PS
