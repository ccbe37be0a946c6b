"""The table of benchmarks: what is measured, and what it should come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from launch.benchmarks import (
    calls,
    decoding,
    processes,
    serving,
    training,
    training_by_hand,
)
from launch.benchmarks.paired import Measurement, Thunk, compare, time_pairs
from launch.benchmarks.platforms import CHIP_NUMERICS, DEVICES, STOCHASTIC, Settings, devices

Measure = Callable[[Settings, int], Measurement]


@dataclass(frozen=True)
class Row:
    """One benchmark.

    Attributes:
      name: what is measured.
      target: the value should not exceed it.
      unit: of value and target; "×" is a ratio to the baseline.
      repetitions: how often it is measured, unless the settings say otherwise.
      measure: called with the settings and the number of repetitions.
    """

    name: str
    target: float
    unit: str
    repetitions: int
    measure: Measure


def in_process(
    settings: Settings,
    repetitions: int,
    prepare: Callable[[Sequence[jax.Device]], Thunk],
    count: int,
    warmup: int,
) -> Measurement:
    """Ratio of platform to baseline for what `prepare` makes ready on `count` devices of each."""
    subject = prepare(devices(settings.platform, count))
    baseline = prepare(devices(settings.baseline, count))
    return compare(*time_pairs(subject, baseline, repetitions, warmup), how="ratio")


def generation(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of the models' generation to a loop written by hand, both on the baseline."""
    on = devices(settings.baseline, 1)
    subject, by_hand = decoding.generating(on), decoding.generating_by_hand(on)
    return compare(*time_pairs(subject, by_hand, repetitions, warmup=2), how="ratio")


def step_by_hand(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of the training job's step to one written by hand, both on one baseline device."""
    on = devices(settings.baseline, 1)
    subject, by_hand = training.training_step(on), training_by_hand.training_by_hand(on)
    return compare(*time_pairs(subject, by_hand, repetitions, warmup=3), how="ratio")


def depth(settings: Settings, repetitions: int) -> Measurement:
    """Ratio of making a deep model's training to that of a flat one, both on the platform."""
    on = devices(settings.platform, DEVICES)
    deep, flat = (training.compiling_scanned(on, n) for n in (training.DEEP, training.FLAT))
    return compare(*time_pairs(deep, flat, repetitions, warmup=0), how="ratio")


def _ratio(prepare: Callable[[Sequence[jax.Device]], Thunk], count: int, warmup: int) -> Measure:
    return partial(in_process, prepare=prepare, count=count, warmup=warmup)


def _numerics(variables: Mapping[str, str]) -> Measure:
    return partial(processes.numerics, variables=variables)


def _call_of_kernel(number: str) -> Measure:
    return partial(processes.kernels, row="call_overhead", number=number, scale=1e3)


def _speed_of_kernel(number: str) -> Measure:
    return partial(processes.kernels, row="emulation_speed", number=number, scale=1.0)


def _in_python(row: str) -> Measure:
    return partial(processes.calls_in_python, row=row)


ROWS = (
    Row("training step", 1.25, "×", 11, _ratio(training.training_step, DEVICES, 3)),
    Row("training step, over by hand", 1.1, "×", 21, step_by_hand),
    Row("compile 64 scanned layers, over 4", 1.3, "×", 3, depth),
    Row("tiny call", 3.0, "×", 25, _ratio(calls.tiny, 1, 3)),
    Row("unwaited call", 3.5, "×", 25, _ratio(calls.unwaited, 1, 3)),
    Row("call and device_get", 4.0, "×", 25, _ratio(calls.fetching, 1, 3)),
    Row("300 arguments", 2.0, "×", 15, _ratio(calls.many_arguments, DEVICES, 3)),
    Row("in Python: tiny call", 6.0, "×", 25, _in_python("tiny")),
    Row("in Python: unwaited call", 10.0, "×", 25, _in_python("unwaited")),
    Row("in Python: call and device_get", 4.0, "×", 25, _in_python("fetching")),
    Row("in Python: 300 arguments", 4.0, "×", 15, _in_python("many_arguments")),
    Row("compile 12 layers", 2.0, "×", 3, _ratio(training.compiling, DEVICES, 1)),
    Row("import and first jit", 1.0, "s", 5, processes.first_jit),
    Row("installed, not used", 0.005, "s", 20, processes.bystander),
    Row("512 cores: start", 3.0, "s", 3, partial(processes.many_cores, number="start")),
    Row("512 cores: step", 5.0, "s", 3, partial(processes.many_cores, number="step")),
    Row("growth in 10,000 calls", 20.0, "MB", 1, partial(processes.growth, calls=10_000)),
    Row("BF16 step, chip numerics", 1.5, "×", 3, _numerics(CHIP_NUMERICS)),
    Row("BF16 step, stochastic", 2.5, "×", 3, _numerics(STOCHASTIC)),
    Row("slowest rounding", 1e9 / 300e6, "ns", 3, partial(processes.rounding, calls=15)),
    Row("loading, over reading", 1.05, "×", 7, processes.loading_time),
    Row("loading, peak memory", 1.06, "×", 3, processes.loading_memory),
    Row("generation, over by hand", 1.2, "×", 11, generation),
    Row("serving: planning of 256", 1.0, "ms", 400, serving.planning),
    Row("serving: streams, step over its programs", 1.05, "×", 75, serving.streamed_steps),
    Row("serving: streams, answers over their steps", 1.05, "×", 7, serving.streamed_answers),
    Row("kernel call, one device", 1.0, "ms", 200, _call_of_kernel("one")),
    Row("kernel call, 2x2 mesh", 1.0, "ms", 200, _call_of_kernel("mesh")),
    Row("kernel of 2,048² products, over NumPy", 2.0, "×", 7, _speed_of_kernel("emulator")),
    Row("handles left", 0.0, "", 1, processes.handles),
)
