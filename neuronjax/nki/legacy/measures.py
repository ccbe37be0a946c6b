"""`nki.baremetal`, `nki.benchmark` and `nki.profile` of NKI 0.x: decorators that run a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuronjax.nki import profiling
from neuronjax.nki.kernel import simulate
from neuronjax.nki.legacy.kernel import LegacyKernel, mark_kernel


@dataclass(frozen=True)
class Latency:
    """The time of a kernel, which is the same in every run."""

    microseconds: float

    def get_latency_percentile(self, percentile: int) -> float:
        """Returns the time in microseconds, which is the same for each percentile."""
        return self.microseconds


@dataclass
class BenchmarkResult:
    """What a benchmark has measured: the time on the NeuronCore."""

    nc_latency: Latency


def _kernel(function: Callable[..., object]) -> LegacyKernel:
    return mark_kernel(function, getattr(function, "mode", "auto"))


def baremetal(function: Callable[..., object] | None = None, **options: Any) -> Any:
    """A kernel whose calls with arrays of numpy return such."""
    if function is None:
        return functools.partial(baremetal, **options)
    return mark_kernel(function, "baremetal")


class Measured:
    """A kernel that is measured when it is called, and then has a `benchmark_result`."""

    def __init__(self, kernel: LegacyKernel, folder: str | None = None) -> None:
        self.kernel, self._folder = kernel, folder
        self.benchmark_result = BenchmarkResult(Latency(float("nan")))

    def __getitem__(self, grid: int | tuple[int, ...]) -> Measured:
        return Measured(self.kernel[grid], self._folder)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The results; prints the time on the NeuronCore."""
        timeline = profiling.benchmark(self.kernel, *arguments, **keywords)
        latency = Latency(timeline.total_ns / 1e3)
        self.benchmark_result = BenchmarkResult(latency)
        print(f"{self.kernel.function.__name__}: {latency.microseconds:.2f} us on the NeuronCore")
        if self._folder is not None:
            profiling.profile(self.kernel, *arguments, folder=self._folder, **keywords)
        return simulate(self.kernel)(*arguments, **keywords)


def benchmark(
    function: Callable[..., object] | None = None,
    *,
    warmup: int = 10,
    iters: int = 100,
    **options: object,
) -> Any:
    """A kernel that is measured when it is called; runs are alike, so `warmup` and `iters` have no
    effect."""
    return benchmark if function is None else Measured(_kernel(function))


def profile(
    function: Callable[..., object] | None = None,
    *,
    working_directory: str = "profile",
    **options: object,
) -> Any:
    """A kernel whose calls also write a profile to `working_directory`."""
    if function is None:
        return functools.partial(profile, working_directory=working_directory)
    return Measured(_kernel(function), working_directory)
