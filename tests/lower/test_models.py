"""Models on engines, with few orders; `python -m tests.conformance.engine_models` tries more."""

from __future__ import annotations

import jax
import pytest

from neuronjax.host.client import HostClient
from tests.lower.model_cases import MODELS, check, on_eight_cores, on_one_core


@pytest.fixture(scope="module")
def host() -> HostClient:
    return HostClient(8)


@pytest.mark.parametrize("name", MODELS)
def test_one_core(name: str) -> None:
    check(on_one_core(name), seeds=0)


@pytest.mark.parametrize("name", ["decoder training step"])
def test_eight_cores(name: str, cpu_devices: list[jax.Device], host: HostClient) -> None:
    check(on_eight_cores(name, cpu_devices, host), seeds=0)
