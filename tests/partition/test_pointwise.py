"""Depthwise convolutions by one position, split over their channels, against one device of ``cpu``.

XLA's partitioner would end the process, on ``cpu`` too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

IMAGE, VOLUME = "NHWC", "NDHWC"

CASES: dict[str, tuple[str, P, P, Any, int, bool]] = {
    "split": (IMAGE, P(None, None, None, "x"), P(), np.float32, 1, False),
    "gradients": (IMAGE, P(None, None, None, "y"), P(None, None, None, "y"), np.float32, 1, True),
    "two of each": (IMAGE, P("x", None, None, "y"), P(), np.float32, 2, False),
    "channels first": ("NCHW", P(None, ("x", "y")), P(), np.float32, 1, True),
    "bfloat16": (IMAGE, P(None, "x", None, "y"), P(), ml_dtypes.bfloat16, 1, True),
    "volume": (VOLUME, P("x", None, None, None, "y"), P(), np.float32, 1, True),
}
"""Layout, splits of source and kernel, dtype, results of each channel, and whether of gradients."""


@pytest.mark.parametrize("name", CASES)
def test_products_of_channels(
    name: str, neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    layout, of_source, of_kernel, dtype, results, is_gradient = CASES[name]
    spatial = [letter for letter in layout if letter not in "NC"]
    sizes = {"N": 4, "C": 16} | dict.fromkeys(spatial, 8)
    kernel_layout = "".join(spatial) + "IO"
    rng = np.random.default_rng(0)
    source = rng.standard_normal([sizes[letter] for letter in layout]).astype(dtype)
    kernel = rng.standard_normal([1] * (len(spatial) + 1) + [16 * results]).astype(dtype)

    def convolution(source: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            source, kernel, [1] * len(spatial), "SAME", feature_group_count=16,
            dimension_numbers=(layout, kernel_layout, layout),
        )  # fmt: skip

    def loss(source: Any, kernel: Any) -> Any:
        return jnp.sin(convolution(source, kernel)).astype(jnp.float32).sum()

    function = jax.jit(jax.grad(loss, (0, 1)) if is_gradient else convolution)
    grid = np.array(neuron_devices, dtype=object).reshape(2, 4)
    mesh = Mesh(grid, ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    found = function(
        jax.device_put(source, NamedSharding(mesh, of_source)),
        jax.device_put(kernel, NamedSharding(mesh, of_kernel)),
    )
    expected = function(*jax.device_put((source, kernel), cpu_devices[0]))
    tolerance = 2.0**-6 if dtype == ml_dtypes.bfloat16 else 2.0**-20
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = (np.asarray(value, np.float64) for value in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max(), rtol=0)
