"""Times and profiles of kernels: what works when, what waits for what, what is slow, by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from neuronjax.errors import KernelError
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.nki.calls import call
from neuronjax.nki.kernel import Kernel, kernel_of
from neuronjax.profiling import store
from neuronjax.profiling.analyse import analyse, facts
from neuronjax.profiling.records import Profile, Run
from neuronjax.program.program import Program
from neuronjax.timing.platform import Platform
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline


def benchmark(
    kernel: Callable[..., object] | None = None,
    /,
    *arguments: object,
    target: str | None = None,
    **keywords: object,
) -> Timeline:
    """The time of one run of a kernel, without values: of arrays only shapes and dtypes count.

    `target` is the machine, as for `simulate`. Raises as `Kernel.trace` does.
    """
    kernel = _given(kernel, "benchmark")
    called = call(kernel.function, arguments, keywords)
    program = kernel.compile(called, target).program
    return schedule(program, platform=platform_of(program))


def profile(
    kernel: Callable[..., object] | None = None,
    /,
    *arguments: object,
    folder: str | Path | None = None,
    target: str | None = None,
    **keywords: object,
) -> Profile:
    """The profile of one run of a kernel, without values, as `benchmark` has its time.

    `folder` gets what `neuronjax.profile` writes: ``report.html``, traces for Perfetto,
    ``summary.json`` and ``profile.json``. None writes nothing.

    Raises as `Kernel.trace` does, and ``ConfigurationError`` if the folder cannot be written to.
    """
    kernel = _given(kernel, "profile")
    recorded = profiled(kernel.compile(call(kernel.function, arguments, keywords), target).program)
    if folder is not None:
        store.write(recorded, Path(folder))
    return recorded


def profiled(program: Program) -> Profile:
    """The profile of one run of a kernel's program."""
    machine = machine_of(program)
    return Profile(
        machine=facts(machine),
        programs=(analyse(program, machine, platform=platform_of(program, machine)),),
        runs=(Run(0, (0,), 0.0, 0, 0),),
        counts=(1,),
        host_ns=0,
    )


def _given(kernel: Callable[..., object] | None, name: str) -> Kernel:
    """The kernel; ``KernelError`` for what was a decorator in older versions of NKI."""
    if kernel is None:
        raise KernelError(
            f"nki.{name} as a decorator was removed from NKI: mark the kernel with nki.jit and "
            f"call nki.{name}(kernel, *arrays)."
        )
    return kernel_of(kernel)


def platform_of(program: Program, machine: Machine | None = None) -> Platform:
    """What a kernel is timed on: a machine (None: the smallest with its ranks) whose other logical
    cores are idle, as in an estimate of the kernel alone. The physical cores of a logical one share
    its memory, whether or not the kernel uses them all."""
    chip = program.target.chip_spec
    busy = min(chip.cores, program.ranks * chip.default_lnc)
    return Platform.of(program, machine, busy_cores=busy)


def machine_of(program: Program) -> Machine:
    """The smallest machine with the chip that a kernel is for."""
    chip, lnc = program.target.chip, program.target.lnc
    target = next(name for name, instance in INSTANCES.items() if instance.chip.name == chip)
    return Machine.create(target, lnc)
