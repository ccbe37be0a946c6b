"""A step's time on an emulated device, as its platform tells it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from launch.monitoring.summary import Summary
from launch.simulated import DeviceTime, device_time


class Compiled:
    def __init__(self, cost: Any) -> None:
        self.cost_analysis = lambda: cost


def test_a_platform_that_simulates() -> None:
    cost = {"flops": 1e9, "optimal_seconds": 0.0125, "mfu_estimated_percent": 25.0}
    found = device_time(Compiled(cost))
    assert found == DeviceTime(seconds=0.0125, mfu=0.25)
    assert str(found) == "12.5 ms on the device, MFU 25%"


def test_what_the_platform_assumes_is_kept() -> None:
    cost = {"optimal_seconds": 1.0, "mfu_estimated_percent": 1.0, "assumed": "fft on the host"}
    found = device_time(Compiled(cost))
    assert found is not None
    assert found.assumed == "fft on the host"
    assert "fft on the host" in str(Summary(0, 10, found))


def test_a_model_asks_for_less_than_its_program_computes() -> None:
    """A step that computes a quarter of its products again, or on another core as well."""
    cost = {"flops": 1e9, "optimal_seconds": 0.0125, "mfu_estimated_percent": 25.0}
    assert device_time(Compiled(cost), model_flops=0.8e9) == DeviceTime(seconds=0.0125, mfu=0.2)


@pytest.mark.parametrize(
    "cost",
    [None, {}, {"flops": 1.0}, {"optimal_seconds": 1.0},
     {"optimal_seconds": 0.0, "mfu_estimated_percent": 1.0}],
)  # fmt: skip
def test_other_platforms(cost: Any) -> None:
    assert device_time(Compiled(cost)) is None


def test_jax_on_the_cpu() -> None:
    x = jax.device_put(jnp.ones((8, 8)), jax.devices("cpu")[0])
    assert device_time(jax.jit(lambda x: x @ x).lower(x).compile()) is None
