"""Models on engines, with few orders; `python -m tests.conformance.engine_models` tries more."""

from __future__ import annotations

import jax
import pytest

from neuronjax.host.client import HostClient
from neuronjax.program.program import Split
from neuronjax.program.walk import walk
from tests.lower.model_cases import MODELS, check, on_eight_cores, on_one_core


@pytest.fixture(scope="module")
def host() -> HostClient:
    return HostClient(8)


SLOW = ("mixture of experts", "Swin", "Llama 4")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS],
)
def test_one_core(name: str) -> None:
    check(on_one_core(name), seeds=0)


@pytest.mark.parametrize("name", ["decoder training step", "ResNet"])
def test_two_physical_cores(name: str) -> None:
    """The bits of one core, and kernels on both."""
    one, two = on_one_core(name), on_one_core(name, lnc=2)
    assert any(isinstance(node, Split) for _, node in walk(two.program))
    check(two, seeds=0)
    for alone, found in zip(one.in_program_order, two.in_program_order, strict=True):
        assert [each.tobytes() for each in found] == [each.tobytes() for each in alone]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder training step"])
def test_eight_cores(name: str, cpu_devices: list[jax.Device], host: HostClient) -> None:
    check(on_eight_cores(name, cpu_devices, host), seeds=0)
