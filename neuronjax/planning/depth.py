"""Deep models from shallow ones: equal layers cost equally, so the numbers lie on a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from neuronjax.errors import ConfigurationError
from neuronjax.planning.measure import Measurement

DEPTHS = (3, 4)
"""Layers of the models that are compiled instead: a first, a last, and one or two between. At two
layers memory between kernels does not repeat yet."""


Prepared = TypeVar("Prepared")
"""A model of some depth, ready to be measured."""


def at_depth(
    layers: int,
    prepare: Callable[[int], Prepared],
    measure: Callable[[Prepared], Measurement],
    measure_depths: Callable[[Prepared, Prepared, float], Measurement],
    depths: tuple[int, int] = DEPTHS,
) -> tuple[Measurement, str | None]:
    """The measurement at `layers`, and what was assumed; few layers are measured as they are.

    Both depths are prepared before the first is measured: `prepare` may go on in another thread.
    `measure_depths` measures a shallow and a deep model and goes on along their line, so many times
    as far as the deep one is.

    ConfigurationError: no layers, or depths that are not ascending.
    """
    shallow, deep = depths
    if layers < 1 or not 1 <= shallow < deep:
        raise ConfigurationError(
            f"{layers} layers cannot be estimated from depths {shallow},{deep}: all must be "
            "positive, and the depths ascending."
        )
    if layers <= deep:
        return measure(prepare(layers)), None
    share = (layers - shallow) / (deep - shallow)
    at_deep, at_shallow = prepare(deep), prepare(shallow)
    measurement = measure_depths(at_shallow, at_deep, share)
    return measurement, f"{layers} identical layers, extrapolated from {shallow} and {deep}"
