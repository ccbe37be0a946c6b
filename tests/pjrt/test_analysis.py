"""Cost and memory analysis of programs for the emulated engines, or for nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from neuronjax import estimate
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
PAGE = Path(__file__).parents[2].joinpath("docs", "estimates.md").read_text()
SECTION = PAGE.partition("## JAX's own analysis")[2].partition("\n## ")[0]
KEYS = set(re.findall(r"^\| `([a-z_ ]+)` \|", SECTION, re.M))


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
    assert set(cost) == (KEYS if simulate == "1" else {"flops"})
    assert cost["flops"] == FLOPS


AHEAD = """
import json
import jax, jax.numpy as jnp
from jax.experimental import topologies

topology = topologies.get_topology_desc("trn2.48xlarge", "neuron", lnc=2)
one = jax.sharding.SingleDeviceSharding(topology.devices[0])
x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32, sharding=one)
compiled = jax.jit(lambda x: jnp.tanh(jnp.tanh(x @ x) @ x) @ x).lower(x).compile()
memory = compiled.memory_analysis()
print(json.dumps({
    "cost": compiled.cost_analysis(),
    "argument": memory.argument_size_in_bytes,
    "code": memory.generated_code_size_in_bytes,
    "temp": memory.temp_size_in_bytes,
}))
"""


def test_what_is_compiled_ahead_says_nothing_of_the_host(run_python: RunPython) -> None:
    done = run_python(AHEAD, {"NEURONJAX_SIMULATE": "1"}, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["cost"]) == KEYS
    assert found["argument"] == 4 * 4096 * 4096
    assert found["code"] == 0
    estimated = estimate(
        jax.jit(lambda x: jnp.tanh(jnp.tanh(x @ x) @ x) @ x),
        jax.ShapeDtypeStruct((4096, 4096), jnp.float32),
        target="trn2.48xlarge",
        lnc=2,
    )
    assert found["temp"] == estimated.memory["scratch"]
    assert found["cost"]["optimal_seconds"] == pytest.approx(estimated.step_seconds, rel=1e-6)


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
