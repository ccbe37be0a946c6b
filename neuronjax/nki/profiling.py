"""Profiles of kernels: what works when, what waits for what, and what is slow, by their lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuronjax.errors import KernelError
from neuronjax.machine.instances import INSTANCES
from neuronjax.machine.machine import Machine
from neuronjax.nki.calls import call
from neuronjax.nki.kernel import Kernel
from neuronjax.profiling import store
from neuronjax.profiling.analyse import analyse, facts
from neuronjax.profiling.records import Profile, Run


def profile(
    kernel: Kernel, folder: str | Path | None = None, chip: str = "trainium2"
) -> Callable[..., Profile]:
    """The kernel as a function of numpy arrays, of which only shapes and dtypes count, that returns
    the profile of one run, without values.

    `folder` gets what `neuronjax.profile` writes: ``report.html``, traces for Perfetto,
    ``summary.json`` and ``profile.json``. None writes nothing.

    Raises as `Kernel.trace` does, and ``ConfigurationError`` if the folder cannot be written to.
    """

    def profiled(*arguments: Any, **keywords: Any) -> Profile:
        traced = kernel.compile(call(kernel.function, arguments, keywords), chip)
        machine = _machine(kernel.function.__name__, chip, traced.program.target.lnc)
        recorded = Profile(
            machine=facts(machine),
            programs=(analyse(traced.program, machine),),
            runs=(Run(0, (0,), 0.0, 0, 0),),
            counts=(1,),
            host_ns=0,
        )
        if folder is not None:
            store.write(recorded, Path(folder))
        return recorded

    return profiled


def _machine(name: str, chip: str, lnc: int) -> Machine:
    """The smallest machine with a chip."""
    for target, instance in INSTANCES.items():
        if instance.chip.name == chip:
            return Machine.create(target, lnc)
    raise KernelError(f"{name}: no known machine has the chip {chip!r}.")
