"""Fixtures of the launch tests."""

import jax
import pytest


@pytest.fixture(params=["cpu", "neuron"])
def devices(request: pytest.FixtureRequest) -> list[jax.Device]:
    """All devices of a platform."""
    return jax.devices(request.param)
