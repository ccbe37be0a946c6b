"""A user's own measurements: constants of the timing model that are fitted to them.

Only constants move that describe what differs between machines and releases, within what they can
physically be, and only those that at least two measurements depend on. What the new constants buy
is what they buy on measurements that are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear

from neuronjax.display import Displayed, Table, duration, rounded
from neuronjax.errors import ConfigurationError
from neuronjax.planning.estimate import of_factory, setting_of
from neuronjax.planning.measure import Setting
from neuronjax.planning.record import Estimate
from neuronjax.planning.tracing import abstract_mesh
from neuronjax.planning.workload import Factory
from neuronjax.timing.calibration import CALIBRATION, Calibration

_STEP = math.log(1.5)
"""How far a constant is moved to see what depends on it, as a logarithm."""
_LEAST_EFFECT = 0.02
"""The relative change of a time, for a constant that doubles, from which on it depends on it."""
_FEWEST = 2
"""Measurements that must depend on a constant which moves."""
_AT_BOUND = 1.001
"""A constant that is closer to a bound than this factor is held by it."""
_STIFFNESS = 0.1
"""Noise of measurements over what is known of constants before: 5 % over a factor of 1.6."""


@dataclass(frozen=True)
class Movable:
    """A constant that may move, or its entry for a version of the core, between two bounds."""

    name: str
    low: float
    high: float
    reason: str
    """Why it cannot lie beyond them."""
    version: int | None = None

    @property
    def label(self) -> str:
        """The constant as the file of a calibration has it."""
        return self.name if self.version is None else f"{self.name}.{self.version}"

    def of(self, calibration: Calibration) -> float:
        """The constant's value in a calibration."""
        value = getattr(calibration, self.name)
        return float(value if self.version is None else value[self.version])

    def scaled(self, calibration: Calibration, factor: float) -> Calibration:
        """The calibration with the constant multiplied."""
        value: Any = self.of(calibration) * factor
        if self.version is not None:
            value = {**getattr(calibration, self.name), self.version: value}
        return dataclasses.replace(calibration, **{self.name: value})


def movable(version: int) -> tuple[Movable, ...]:
    """The constants that may move for a version of the core."""
    return tuple(
        constant for constant in (
            Movable("host_call_ns", 1e3, 1e6, "a call takes 1 µs to 1 ms", version),
            Movable("dma_start_ns", 100, 3e3, "a doorbell takes 0.1 to 3 µs"),
            Movable("dma_completion_ns", 100, 3e3, "a write receipt takes 0.1 to 3 µs"),
            Movable("dma_run_ns", 0.1, 20, "a descriptor takes 0.1 to 20 ns"),
            Movable("wake_ns", 3, 300, "a semaphore takes 3 to 300 ns"),
            Movable("collective_base_ns", 500, 5e4, "a collective starts in 0.5 to 50 µs"),
            Movable("collective_engines", 1, 16, "a core has 16 DMA engines"),
        )
        if constant.of(CALIBRATION)
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured time of a workload on a target."""

    factory: Factory
    target: str
    milliseconds: float
    mesh: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Batch and dtype, where they are chosen."""

    @property
    def label(self) -> str:
        """The workload with all that was chosen."""
        chosen = {**self.given, **self.factory.settings}
        words = (f"{name}={value}" for name, value in chosen.items())
        return " ".join(filter(None, (self.factory.name, self.target, self.mesh, *words)))

    @functools.cached_property
    def _setting(self) -> Setting:
        return setting_of(self.target, None)

    def estimate(self, calibration: Calibration = CALIBRATION) -> Estimate:
        """The estimate with some constants; what programs have in common is kept."""
        setting = dataclasses.replace(self._setting, calibration=calibration)
        return of_factory(self.factory, setting, abstract_mesh(self.mesh), **self.given)

    @property
    def version(self) -> int:
        """The version of the core."""
        return self._setting.machine.chip.core.version


@dataclass(frozen=True)
class Row:
    """A measurement in ns beside what is predicted before, after, and by the others alone."""

    label: str
    measured: float
    before: float
    after: float
    left_out: float


@dataclass(frozen=True, repr=False)
class Calibrated(Displayed):
    """What was fitted. `changes` has the constants that may move, with old and new values."""

    rows: tuple[Row, ...]
    changes: tuple[tuple[Movable, float, float], ...]
    fixed: tuple[tuple[str, str], ...]
    """Constants that did not move, and why."""

    def error(self, predicted: Callable[[Row], float]) -> float:
        """The root mean square of the logarithms of predicted over measured."""
        errors = [math.log(predicted(row) / row.measured) for row in self.rows]
        return math.sqrt(sum(error**2 for error in errors) / len(errors))

    @property
    def helps(self) -> bool:
        """Whether the fitted constants predict measurements better that they were not fitted to."""
        return self.error(lambda row: row.left_out) < self.error(lambda row: row.before)

    def parts(self) -> Iterator[str | Table]:
        yield Table(
            [
                (
                    row.label,
                    *(duration(ns) for ns in (row.measured, row.before, row.after, row.left_out)),
                )
                for row in self.rows
            ],
            head=("measurement", "measured", "before", "after", "left out"),
        )
        before, after, left_out = (
            f"{math.expm1(self.error(attrgetter(field))):.1%}"
            for field in ("before", "after", "left_out")
        )
        yield f"error: {before} before, {after} after, {left_out} of measurements left out"
        if self.changes:
            rows = [
                (held.label, rounded(old), rounded(new), held.reason + _at_bound(held, new))
                for held, old, new in self.changes
            ]
            yield Table(rows, head=("constant", "was", "is", "bounds"))
        if self.fixed:
            yield "stay as they are:\n" + "\n".join(f"  {name}: {why}" for name, why in self.fixed)

    def toml(self) -> str:
        """The constants that may move, as `--calibration` takes them."""
        lines = ["[calibration]"]
        for constant, _, new in self.changes:
            lines.append(f"{constant.label} = {new:.6g}")
        return "\n".join([*lines, ""])


def _at_bound(constant: Movable, value: float) -> str:
    """What is said of a constant that would have moved further."""
    is_held = min(value / constant.low, constant.high / value) < _AT_BOUND
    return "; it would move further: something else is slow or fast" if is_held else ""


def calibrate(measurements: Sequence[Measured]) -> Calibrated:
    """Fits the constants that may move to measurements of one kind of machine.

    ConfigurationError: too few; of cores of several versions; or a time that is impossible.
    """
    if len(measurements) < _FEWEST + 1:
        raise ConfigurationError(
            f"{len(measurements)} measurements cannot move a constant: give at least {_FEWEST + 1}."
        )
    versions = {point.version for point in measurements}
    if len(versions) > 1:
        raise ConfigurationError(
            "the measurements are of several kinds of cores: "
            f"{', '.join(dict.fromkeys(point.target for point in measurements))}. Calibrate each "
            "by itself."
        )
    before = np.array([_checked(point) for point in measurements])
    measured = np.array([1e6 * point.milliseconds for point in measurements])
    constants, effects, fixed = _effects(measurements, before, movable(versions.pop()))
    wanted = np.log(measured / before)
    powers = _fitted(constants, effects, wanted)
    left_out = [
        effect @ _fitted(constants, np.delete(effects, at, 0), np.delete(wanted, at))
        for at, effect in enumerate(effects)
    ]
    fitted = CALIBRATION
    for constant, power in zip(constants, powers, strict=True):
        fitted = constant.scaled(fitted, math.exp(power))
    after = [point.estimate(fitted).step_ns for point in measurements]
    rows = tuple(
        Row(point.label, *times)
        for point, *times in zip(
            measurements, measured, before, after, before * np.exp(left_out), strict=True
        )
    )
    values = tuple((held, held.of(CALIBRATION), held.of(fitted)) for held in constants)
    return Calibrated(rows, values, tuple(fixed))


def _checked(point: Measured) -> float:
    """The predicted time. ConfigurationError: the measured one is less than the least possible."""
    estimate = point.estimate()
    if not 1e6 * point.milliseconds >= estimate.roofline_ns:
        raise ConfigurationError(
            f"{point.label}: {point.milliseconds:g} ms is impossible: its arithmetic and its bytes "
            f"need {duration(estimate.roofline_ns)} at the machine's best. Check the unit, the "
            "shapes and the target."
        )
    return estimate.step_ns


def _effects(
    measurements: Sequence[Measured], before: np.ndarray, candidates: Sequence[Movable]
) -> tuple[list[Movable], np.ndarray, list[tuple[str, str]]]:
    """The constants that enough measurements depend on, with the power of each in each time; and
    why the others stay."""
    constants, columns, fixed = [], [], []
    for constant in candidates:
        changed = constant.scaled(CALIBRATION, math.exp(_STEP))
        times = np.array([point.estimate(changed).step_ns for point in measurements])
        powers = np.log(times / before) / _STEP
        count = int((np.abs(powers) > _LEAST_EFFECT).sum())
        if count >= _FEWEST:
            constants.append(constant)
            columns.append(powers)
        else:
            fixed.append((constant.label, f"{count} measurements depend on it"))
    effects = np.stack(columns, 1) if columns else np.zeros((len(measurements), 0))
    return constants, effects, fixed


def _fitted(constants: Sequence[Movable], effects: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The logarithms of factors on constants, within their bounds, that bring times closest."""
    if not constants:
        return np.zeros(0)
    bounds = [
        (math.log(held.low / held.of(CALIBRATION)), math.log(held.high / held.of(CALIBRATION)))
        for held in constants
    ]
    stiff = _STIFFNESS * np.eye(len(constants))
    solved = lsq_linear(
        np.concatenate([effects, stiff]),
        np.concatenate([wanted, np.zeros(len(constants))]),
        bounds=tuple(np.array(bounds).T),
    )
    return np.asarray(solved.x)
