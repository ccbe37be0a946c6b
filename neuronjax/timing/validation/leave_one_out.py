"""A point as the model predicts it that has not seen it.

Each constant that was fitted to the point is fitted to its other points instead, the others of the
model as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scipy.optimize import minimize_scalar

from neuronjax.timing.calibration import CALIBRATION, FITTED, Calibration
from neuronjax.timing.validation.points import Point

Predictor = Callable[[Calibration], float]
"""Constants -> what the model says about a point, in the point's unit."""

_RANGE = (math.log(0.25), math.log(4.0))
"""Where a constant is looked for: logarithms of factors on what it is."""


class _Constant(NamedTuple):
    """A field of the calibration; of one that differs by version of the core, an entry."""

    name: str
    version: int | None

    def scaled(self, calibration: Calibration, factor: float) -> Calibration:
        value = getattr(calibration, self.name)
        if self.version is None:
            return dataclasses.replace(calibration, **{self.name: value * factor})
        changed: Any = {**value, self.version: value[self.version] * factor}
        return dataclasses.replace(calibration, **{self.name: changed})


def _constants(name: str) -> tuple[_Constant, ...]:
    value = getattr(CALIBRATION, name)
    versions = tuple(value) if isinstance(value, Mapping) else (None,)
    return tuple(_Constant(name, version) for version in versions)


def without(point: Point, predictors: Mapping[Point, Predictor]) -> float | None:
    """The prediction of a point by constants that were fitted to others alone.

    None: it alone says what a constant is, or the others are not among `predictors`.
    """
    calibration = CALIBRATION
    names = [name for name, points in FITTED.items() if point.name in points]
    for constant in itertools.chain.from_iterable(map(_constants, names)):
        if not _depends(predictors[point], constant):
            continue
        others = {
            other: predict
            for other, predict in predictors.items()
            if other != point
            and other.name in FITTED[constant.name]
            and _depends(predict, constant)
        }
        if not others:
            return None
        calibration = _fitted(constant, calibration, others)
    return predictors[point](calibration)


def _depends(predict: Predictor, constant: _Constant) -> bool:
    return predict(constant.scaled(CALIBRATION, 2.0)) != predict(CALIBRATION)


def _fitted(
    constant: _Constant, calibration: Calibration, predictors: Mapping[Point, Predictor]
) -> Calibration:
    """The constants with that one for which the predictions of points are closest."""

    def error(power: float) -> float:
        scaled = constant.scaled(calibration, math.exp(power))
        ratios = [predict(scaled) / point.published for point, predict in predictors.items()]
        return sum(math.log(ratio) ** 2 for ratio in ratios)

    best = minimize_scalar(error, bounds=_RANGE, method="bounded", options={"xatol": 1e-3})
    return constant.scaled(calibration, math.exp(best.x))
