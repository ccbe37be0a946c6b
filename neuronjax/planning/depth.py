"""Deep models from shallow ones: equal layers cost equally, so the numbers lie on a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from neuronjax.errors import ConfigurationError
from neuronjax.planning.measure import Measurement, between

DEPTHS = (3, 4)
"""Layers of the models that are compiled instead: a first, a last, and one or two between. At two
layers memory between kernels does not repeat yet."""


Prepared = TypeVar("Prepared")
"""A model of some depth, ready to be measured."""


def at_depth(
    layers: int,
    prepare: Callable[[int], Prepared],
    measure: Callable[[Prepared], Measurement],
    measure_alike: Callable[[Prepared], Measurement],
    depths: tuple[int, int] = DEPTHS,
) -> tuple[Measurement, str | None]:
    """The measurement at `layers`, and what was assumed; few layers are measured as they are.

    Both depths are prepared before the first is measured: `prepare` may go on in another thread.
    `measure_alike` measures a depth as `measure` did the one before it: what is decided by a
    kernel's share of the program must not differ, or the difference counts once for every layer.

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
    deeper, shallower = prepare(deep), prepare(shallow)
    at_deep = measure(deeper)
    measurement = between(measure_alike(shallower), at_deep, share)
    return measurement, f"{layers} identical layers, extrapolated from {shallow} and {deep}"
