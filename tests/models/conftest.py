"""Fixtures of the model tests."""

import jax
import pytest


@pytest.fixture(params=["neuron", pytest.param("cpu", marks=pytest.mark.slow)])
def devices(request: pytest.FixtureRequest) -> list[jax.Device]:
    """All devices of a platform."""
    return jax.devices(request.param)
