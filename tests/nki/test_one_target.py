"""One base of time, and a target that is given wins over the machine of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax
from neuronjax import nki, options
from neuronjax.errors import KernelError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.testing import assert_neuron_compatible
from tests.nki.kernels import loaded, stored, tile

X = jax.ShapeDtypeStruct((128, 2048), jnp.float32)
HOST_CALL_NS = {"trn1.32xlarge": 90_000.0, "inf2.8xlarge": 90_000.0, "trn2.48xlarge": 0.0}
"""What a call took beside the program where it was measured: docs/validation.md, M1, M2 and M10."""


@nki.jit
def doubled(x: Tensor) -> Tensor:
    result = tile(x.shape, x.dtype)
    nisa.tensor_scalar(result, loaded(x), nl.multiply, 2.0)
    return stored(result)


@nki.jit
def for_newer_cores(x: Tensor) -> Tensor:
    """``nki.isa.exponential`` is documented for NeuronCore-v4."""
    result = tile(x.shape, x.dtype)
    nisa.exponential(result, loaded(x))
    return stored(result)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a function": lambda x: doubled(x),
    "one that is jitted": jax.jit(lambda x: doubled(x)),
    "a kernel with a target of its own": lambda x: nki.jit(
        doubled.function, platform_target="trn3"
    )(x),
}


@pytest.mark.parametrize("process", ["trn1", "trn2"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_estimate_and_a_benchmark_say_the_same(
    name: str, process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", process)
    for target, call in HOST_CALL_NS.items():
        estimate = neuronjax.estimate(FUNCTIONS[name], X, target=target)
        timed = nki.benchmark(doubled, X, target=target)
        (profiled,) = nki.profile(doubled, X, target=target).programs
        assert profiled.total_ns == timed.total_ns
        assert not estimate.assumed
        assert estimate.host_call_ns == call
        assert estimate.device_ns == pytest.approx(timed.total_ns)
        assert estimate.launch_ns == pytest.approx(timed.launch_ns + call)
        assert ("host's call" in str(estimate)) == bool(call)


@pytest.mark.parametrize("process", ["trn2", "trn3"])
def test_what_a_chip_refuses_is_that_of_the_target(
    process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", process)
    x = np.linspace(-1, 1, 128 * 64, dtype=np.float32).reshape(128, 64)
    asked: list[Callable[[str], object]] = [
        lambda target: neuronjax.estimate(lambda x: for_newer_cores(x), X, target=target),
        lambda target: assert_neuron_compatible(lambda x: for_newer_cores(x), X, target=target),
        lambda target: nki.simulate(for_newer_cores, target=target)(x),
        lambda target: nki.profile(for_newer_cores, X, target=target),
        lambda target: neuronjax.compare(lambda x: for_newer_cores(x), x, target=target),
    ]
    for ask in asked:
        ask("trn3-gen1-ultraserver")
        with pytest.raises(KernelError, match="exponential on NeuronCore-v3"):
            ask("trn2.48xlarge")


def test_a_target_that_is_given_wins_over_the_variable() -> None:
    environ = {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", "NEURONJAX_TARGET": "trn2.48xlarge"}
    assert options.load(environ).kernel_target == "trn2"
    assert options.load(environ, target="trn1.32xlarge").kernel_target is None
    assert options.load(environ, target="trn1.32xlarge", kernel_target="trn3").kernel_target


@nki.jit
def in_nested_loops(x: Tensor) -> Tensor:
    result = loaded(x)
    for _ in nl.dynamic_range(nisa.register_alloc(2)):
        for _ in nl.dynamic_range(nisa.register_alloc(2)):
            nisa.tensor_scalar(result, result, nl.add, 1.0)
    return stored(result)


@nki.jit
def partly_written(x: Tensor) -> Tensor:
    result = tile(x.shape, x.dtype)
    nisa.dma_copy(result[:, 0:32], x[:, 0:32])
    return stored(result)


@nki.jit
def halved(x: Tensor) -> Tensor:
    rows = x.shape[0] // nl.num_programs()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    own = nl.ds(nl.program_id(0) * rows, rows)
    on_chip = tile((rows, x.shape[1]), x.dtype)
    nisa.dma_copy(on_chip, x[own])
    nisa.dma_copy(out[own], on_chip)
    return out


@pytest.mark.filterwarnings("ignore::neuronjax.errors.KernelWarning")
@pytest.mark.parametrize(
    ("kernel", "given", "words"),
    [
        (halved[2], {"lnc": 1}, ("halved has 2 programs", "choose lnc=2")),
        (in_nested_loops, {}, ("in_nested_loops has loops over registers", "loop over a range")),
        (partly_written, {}, ("partly_written breaks a rule", "test_one_target.py:")),
    ],
    ids=["programs", "loops", "unwritten"],
)
def test_what_falls_to_the_host_has_a_reason_and_a_remedy(
    kernel: nki.Kernel[jax.Array], given: dict[str, int], words: tuple[str, ...]
) -> None:
    (assumed,) = (
        line
        for line in neuronjax.estimate(lambda x: kernel(x), X, **given).assumed
        if "host" in line
    )
    for word in words:
        assert word in assumed
