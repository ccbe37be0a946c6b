"""Cost and memory analysis of programs for the emulated engines, or for nobody."""

from __future__ import annotations

import json

import pytest

from tests.conftest import RunPython

PROGRAM = """
import json
import jax, jax.numpy as jnp

def f(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w)

x = jax.ShapeDtypeStruct((128, 256), jnp.float32)
w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
compiled = jax.jit(f).lower(x, w).compile()
memory = compiled.memory_analysis()
print(json.dumps({
    "cost": compiled.cost_analysis(),
    "argument": memory.argument_size_in_bytes,
    "temp": memory.temp_size_in_bytes,
}))
"""
FLOPS = 2 * 2 * 128 * 256 * 256


def analysed(run_python: RunPython, **environment: str) -> dict:
    done = run_python(PROGRAM, environment)
    return json.loads(done.stdout.splitlines()[-1])


def test_engine_and_none_agree(run_python: RunPython) -> None:
    engine = analysed(run_python, NEURONJAX_EXECUTOR="engine")
    none = analysed(run_python, NEURONJAX_EXECUTOR="none")
    assert engine == none
    assert engine["cost"]["flops"] == FLOPS
    assert engine["cost"]["bytes accessed"] >= 4 * (2 * 128 * 256 + 256 * 256)
    assert 1e-6 < engine["cost"]["optimal_seconds"] < 1e-3
    assert engine["argument"] == 4 * (128 * 256 + 256 * 256)


@pytest.mark.parametrize("simulate", ["0", "1"])
def test_host_has_the_time_on_the_device_if_asked(run_python: RunPython, simulate: str) -> None:
    cost = analysed(run_python, NEURONJAX_EXECUTOR="host", NEURONJAX_SIMULATE=simulate)["cost"]
    assert ("optimal_seconds" in cost) is (simulate == "1")
    assert cost["flops"] == pytest.approx(FLOPS, rel=0.01)


FUNCTIONS = """
import json
import jax, jax.numpy as jnp
import neuronjax

def erf(x):
    return jax.lax.erf(x)

def top_k(x):
    return jax.lax.top_k(x, 4)

def gelu(x):
    return jax.nn.gelu(x, approximate=False)

def composite(x):
    return jax.lax.composite(jnp.tanh, "my.tanh")(x)

x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
for function in (erf, top_k, gelu, composite):
    cost = jax.jit(function).lower(x).compile().cost_analysis()
    estimate = neuronjax.estimate(function, x, target="trn2.3xlarge", lnc=1)
    print(json.dumps([cost["bytes accessed"], cost["optimal_seconds"], estimate.step_seconds]))
"""


def test_what_travels_as_composites_has_its_time(run_python: RunPython) -> None:
    """Operations of CHLO are no work of the host; the estimate is of the same program."""
    done = run_python(FUNCTIONS, {"NEURONJAX_SIMULATE": "1"}, timeout=300)
    assert done.returncode == 0, done.stderr
    for nbytes, seconds, estimated in map(json.loads, done.stdout.splitlines()):
        assert nbytes >= 4 * 64 * 128
        assert seconds == pytest.approx(estimated, rel=1e-6)
