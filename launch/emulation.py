"""Features of the emulated platform only: a device's time, measured or estimated."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

import neuronjax
from launch.errors import LaunchError, MeshError, OutputError, SettingsError
from neuronjax import mx
from neuronjax.display import Table as Table
from neuronjax.display import digits as digits
from neuronjax.display import duration_within as duration_within
from neuronjax.display import rounded as rounded
from neuronjax.errors import NeuronError
from neuronjax.machine.machine import Machine
from neuronjax.planning.estimate import DEFAULT_TARGET, of_factory, setting_of
from neuronjax.planning.memory import memory_of
from neuronjax.planning.prices import price_for as price_for
from neuronjax.planning.record import Estimate as Estimate
from neuronjax.planning.runners import Processes as Processes
from neuronjax.planning.table import occupancy as occupancy
from neuronjax.planning.workload import Factory
from neuronjax.timing.network import Op, collective_time

PLATFORM = "neuron"


@contextmanager
def profile(folder: Path) -> Iterator[None]:
    """Profiles the block: with `neuronjax.profile` on that platform, and with `jax.profiler.trace`
    elsewhere.

    Raises OutputError if the profile cannot be written.
    """
    is_emulated = jax.default_backend() == PLATFORM
    try:
        with neuronjax.profile(folder) if is_emulated else jax.profiler.trace(folder):
            yield
    except (NeuronError, OSError) as error:
        raise OutputError(f"cannot write a profile to {folder}: {error}") from error


def target_in_use() -> tuple[str, int]:
    """The emulated instance, or the default one, and the number of devices."""
    target = getattr(jax.devices()[0], "target", DEFAULT_TARGET)
    return target, jax.device_count()


def cores_of(target: str) -> int:
    """How many cores a program sees on a machine. Raises SettingsError for one that there is
    not."""
    try:
        return len(Machine.create(target).logical_cores)
    except NeuronError as error:
        raise SettingsError(str(error)) from error


def estimate_factory(
    make: Callable[..., dict[str, Any]],
    mesh: AbstractMesh,
    target: str,
    depths: tuple[int, int],
    price: float | None,
) -> Estimate:
    """The estimate for what `make` returns for a mesh and a number of layers; deep models are
    extrapolated from two depths.

    Raises MeshError if the mesh does not fit instances of the target.
    """
    try:
        setting = setting_of(target, None)
        factory = Factory(make=make, name="training step")
        return of_factory(factory, setting, mesh, price=price, depths=depths)
    except NeuronError as error:
        raise MeshError(f"cannot estimate for {target}: {error}") from error


class Bench:
    """Machines of one kind, on which programs, collectives and their memory are estimated. What
    programs share is compiled and simulated once.

    Raises SettingsError for machines that there are not, or of which too little is published.
    """

    def __init__(self, target: str) -> None:
        try:
            self._setting = setting_of(target, None)
        except NeuronError as error:
            raise SettingsError(str(error)) from error
        self.machine = self._setting.machine

    def estimate(
        self, make: Callable[[AbstractMesh], dict[str, Any]], mesh: AbstractMesh
    ) -> Estimate:
        """The estimate for what `make` returns for a mesh. Raises MeshError where it fits no
        machines of this kind."""
        try:
            factory = Factory(make=lambda mesh: make(mesh), name="training step")
            return of_factory(factory, self._setting, mesh)
        except NeuronError as error:
            if isinstance(error.__cause__, LaunchError):
                raise error.__cause__ from error
            raise MeshError(f"cannot estimate for {self.machine.target}: {error}") from error

    def collective_ns(self, op: str, nbytes: float, ranks: Sequence[int]) -> float:
        """The time of a collective of these ranks in a program, by its name in NKI; `nbytes` are
        those of the whole array."""
        if len(ranks) == 1:
            return 0.0
        timed = collective_time(
            Op(op), round(nbytes), list(ranks), self.machine, in_program=True,
            calibration=self._setting.calibration,
        )  # fmt: skip
        return timed.total_ns

    def memory(
        self, numbers: Mapping[str, float]
    ) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Bytes of a core by kind, and the ranges of those that the runtime takes.

        `numbers` are named as in `neuronjax.planning.measure.Measurement`.
        """
        memory, runtimes = memory_of(numbers, self.machine, 1)
        return memory, {kind: (taken.low, taken.high) for kind, taken in runtimes.items()}


@functools.cache
def bench_of(target: str) -> Bench:
    """The bench of a kind of machine: one for all that a process measures."""
    return Bench(target)


def provide_nki() -> None:
    """Lets kernels `import nki`: where no package of that name is installed, the one here."""
    if "nki" not in sys.modules and find_spec("nki") is None:
        neuronjax.nki.install()


def lacks_microscaling() -> str | None:
    """The target in use, if the platform emulates one without MX formats."""
    target: str | None = getattr(jax.devices()[0], "target", None)
    if target is None:
        return None
    rates = Machine.create(target).chip.core.tensor.rates
    return None if "float8_e4m3fn_x4" in rates else target


def quantize_mx(kernel: np.ndarray, element: str) -> tuple[np.ndarray, np.ndarray]:
    """The MX array nearest to a kernel [inputs, outputs], in blocks of inputs: elements, and scale
    codes, uint8 [inputs / 32, outputs]."""
    elements, scales = mx.quantize(kernel, element, axis=0)
    return np.asarray(elements), np.asarray(scales).view(np.uint8)
