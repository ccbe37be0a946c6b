"""Deep models from shallow ones: equal layers cost equally, so the numbers lie on a line."""

from __future__ import annotations

from collections.abc import Callable

from neuronjax.errors import ConfigurationError
from neuronjax.planning.measure import Measurement, between

DEPTHS = (3, 4)
"""Layers of the models that are compiled instead: a first, a last, and one or two between. At two
layers memory between kernels does not repeat yet."""


def at_depth(
    layers: int,
    measure: Callable[[int], Measurement],
    measure_alike: Callable[[int], Measurement],
    depths: tuple[int, int] = DEPTHS,
) -> tuple[Measurement, str | None]:
    """The measurement at `layers`, and what was assumed; few layers are measured as they are.

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
        return measure(layers), None
    share = (layers - shallow) / (deep - shallow)
    at_deep = measure(deep)
    measurement = between(measure_alike(shallow), at_deep, share)
    return measurement, f"{layers} identical layers, extrapolated from {shallow} and {deep}"
