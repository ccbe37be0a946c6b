"""Slow cores and links in simulated time: a program is as slow as what is slowest of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax
from neuronjax.errors import ConfigurationError
from neuronjax.recording import client_in_use

WIDE = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)


def product(x: jax.Array) -> jax.Array:
    return x @ x @ x


def busy(faults: str, resource: str = "tensor") -> float:
    """Time of the Tensor engine in ns, on a chip that does not throttle it after idle times."""
    found = neuronjax.estimate(product, WIDE, target="trn1.2xlarge", faults=faults)
    return found.busy_ns[resource]


def test_engines_of_a_slow_core() -> None:
    """What takes cycles takes more time in proportion; memory is as fast as before."""
    two, four, eight = (busy(f"slow_core core=0 factor={factor}") for factor in (2, 4, 8))
    assert busy("") < two < four
    assert eight - four == pytest.approx(2 * (four - two), rel=0.01)
    assert busy("slow_core core=0 factor=4", "dma") == pytest.approx(busy("", "dma"), rel=0.01)
    assert busy("slow_core core=1 factor=4") == busy("")


def sharded(faults: str, elements: int) -> Any:
    """An all-reduce over all 64 cores of 16 chips."""
    return neuronjax.estimate(
        lambda x: x.sum(0), jax.ShapeDtypeStruct((64, elements), jnp.float32),
        target="trn2.48xlarge", mesh="all=64", in_specs=P("all"), faults=faults,
    )  # fmt: skip


def test_a_slow_link_slows_what_goes_over_it() -> None:
    times = [
        sharded(faults, 1 << 24).step_ns
        for faults in ("", "slow_link axis=row factor=8", "slow_link axis=row factor=64")
    ]
    assert times[0] < times[1] < times[2]


def test_one_slow_core_holds_all_up() -> None:
    plain, last, first, outside = (
        sharded(faults, 1 << 16).step_ns
        for faults in (
            "", "slow_core core=63 factor=8", "slow_core core=0 factor=8; slow_core core=5",
            "slow_core core=63 factor=1",
        )
    )  # fmt: skip
    assert plain == outside < last == first


def test_profiles_have_it(neuron_devices: list[jax.Device]) -> None:
    step = jax.jit(product)
    inputs = [jax.device_put(np.ones((512, 512), np.float32), d) for d in neuron_devices[:2]]
    times = []
    for x in inputs:
        with neuronjax.inject_faults("slow_core core=1 factor=10"), neuronjax.profile() as seen:
            step(x)
        assert seen.profile is not None
        (program,) = (each for each in seen.profile.programs if each.name == "jit_product")
        times.append(program.busy_ns["tensor"])
    assert times[1] == pytest.approx(10 * times[0], rel=0.05)
    machine = client_in_use().machine
    assert client_in_use().injector.machine_of([1]) is machine


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("slow_core core=64", "names core 64; trn2.48xlarge (LNC 2) has cores 0 to 63"),
        ("slow_link axis=z", "has links along row, column"),
        ("core_dies core=1", "takes no time, and nothing runs here"),
    ],
)
def test_estimates_that_cannot_be(faults: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        neuronjax.estimate(product, WIDE, faults=faults)
    assert words in str(caught.value)
