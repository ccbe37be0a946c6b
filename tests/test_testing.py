"""``neuronjax.testing`` finds on any platform what the platform itself would refuse."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from neuronjax.errors import ConfigurationError, TopologyError, UnknownTargetError, shown_line
from neuronjax.testing import assert_neuron_compatible, incompatibilities
from tests.conftest import RunPython

X = jax.ShapeDtypeStruct((8, 8), np.float32)
SPEC = PartitionSpec("data", "model")
AXES = {"data": 2, "model": 2}


def accepted(x):
    return jax.nn.softmax(x @ x)


def refused(x):
    return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)


def fp8(x):
    return x.astype(jnp.float8_e4m3fn)


def with_threefry(x):
    key = jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32), impl="threefry2x32")
    return jax.random.normal(key, (4,))


def summed(x):
    def body(y):
        return lax.psum(y, "data")

    mesh = AbstractMesh((2, 2), ("data", "model"))
    return jax.shard_map(body, mesh=mesh, in_specs=SPEC, out_specs=PartitionSpec(None, "model"))(x)


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"target": "trn1.2xlarge"},
        {"target": "trn3-gen2-ultraserver", "sdk": "2.31"},
        {"mesh": AXES, "in_shardings": SPEC},
        {"mesh": AbstractMesh((2, 2), ("data", "model")), "in_shardings": (SPEC,)},
        {"target": "trn2.48xlarge", "mesh": {"data": 2, "model": 32}, "in_shardings": SPEC},
        {"severity": "note"},
    ],
    ids=str,
)
def test_accepted(choices: dict[str, Any]) -> None:
    shape = jax.ShapeDtypeStruct((64, 64), np.float32)
    assert_neuron_compatible(accepted, shape, **choices)


def test_devices_of_other_platforms_stand_for_cores(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(cpu_devices[:4]).reshape(2, 2), ("data", "model"))
    assert_neuron_compatible(accepted, X, mesh=mesh, in_shardings=SPEC)
    assert_neuron_compatible(jax.jit(accepted, in_shardings=NamedSharding(mesh, SPEC)), X)


@pytest.mark.parametrize("arguments", [(X,), (np.ones((8, 8), np.float32),)], ids=["type", "array"])
@pytest.mark.parametrize("choices", [{}, {"mesh": AXES, "in_shardings": SPEC}], ids=str)
@pytest.mark.parametrize("function", [refused, jax.jit(refused)], ids=["function", "jitted"])
def test_refused(function: Any, choices: dict[str, Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_neuron_compatible(function, *arguments, **choices)
    heading, line = str(raised.value).splitlines()
    assert heading == "refused would not run on trn2.3xlarge:"
    assert line.startswith("  [NCC_EVRF001] An unsupported operator was used (lax.cond")
    place = shown_line(f"{__file__}:{inspect.getsourcelines(refused)[1] + 1}")
    assert f"at {place})" in line
    assert line.endswith("Compute both branches and choose with jnp.where (jax.lax.select).")


@pytest.mark.parametrize(
    ("target", "sdk", "code"),
    [
        ("trn2.3xlarge", None, "EVRF051"),
        ("trn2.3xlarge", "2.30", "ESPP047"),
        ("trn3-gen1-ultraserver", None, None),
    ],
)
def test_target_and_sdk(target: str, sdk: str | None, code: str | None) -> None:
    found = [finding.rule.code for finding in incompatibilities(fp8, X, target=target, sdk=sdk)]
    assert found == ([code] if code else [])


def test_severity() -> None:
    assert_neuron_compatible(with_threefry, X)
    with pytest.raises(AssertionError, match=r"\[JAX_THREEFRY\]"):
        assert_neuron_compatible(with_threefry, X, severity="warning")


def test_collectives_are_looked_at_per_core() -> None:
    found = incompatibilities(summed, X, target="trn2.48xlarge", mesh=AXES, in_shardings=SPEC)
    assert found == []


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"target": "trn9"}, UnknownTargetError, "'trn9' is not a known instance"),
        ({"sdk": "1.0"}, ConfigurationError, "from 2.20 to 2.32"),
        ({"severity": "fatal"}, ConfigurationError, "not one of note, warning, error"),
        ({"in_shardings": SPEC}, TopologyError, "no mesh was given; pass mesh="),
        ({"mesh": {"data": 4, "model": 4}, "in_shardings": SPEC}, TopologyError, "needs 16 cores"),
    ],
    ids=str,
)
def test_impossible(choices: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        assert_neuron_compatible(accepted, X, **choices)


def test_without_the_platform(run_python: RunPython) -> None:
    """On JAX's cpu platform alone, with one device, and without leaving anything behind."""
    code = """
        import jax, jax.numpy as jnp
        from jax.sharding import PartitionSpec
        from neuronjax.testing import assert_neuron_compatible

        x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
        def f(x):
            return jnp.linalg.cholesky(x)
        for mesh in (None, {"data": 4}):
            spec = PartitionSpec("data") if mesh else None
            try:
                assert_neuron_compatible(f, x, mesh=mesh, in_shardings=spec)
            except AssertionError as error:
                print(str(error).splitlines()[1].split("(")[0], jax.devices())
        print(jax.jit(f)(jnp.eye(8)).sum())
    """
    done = run_python(code, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": None})
    assert done.returncode == 0, done.stderr
    line = "  [NCC_EVRF001] An unsupported operator was used: lapack_spotrf_ffi  [CpuDevice(id=0)]"
    assert done.stdout.splitlines() == [line, line, "8.0"]
