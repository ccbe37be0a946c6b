"""Whoever tells a program's time or memory on the device says what is not the device's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.host_work import DOORS, PROGRAMS

SIMULATED = {"NEURONJAX_SIMULATE": "1", "JAX_PLATFORMS": "neuron"}

TOLD = """
from pathlib import Path
from tests import host_work
host_work.tell({door!r}, Path({folder!r}))
"""


@pytest.mark.parametrize("door", DOORS)
def test_times_say_what_they_leave_out(run_python: RunPython, door: str, tmp_path: Path) -> None:
    done = run_python(TOLD.format(door=door, folder=str(tmp_path)), SIMULATED)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.keys() == PROGRAMS.keys()
    for program, (_, words) in PROGRAMS.items():
        assert words in told[program]
        assert bool(told[program]) == bool(words), program


UNKNOWN = """
import json
import jax, jax.numpy as jnp
compiled = jax.jit(lambda x: jnp.tanh(x @ x) @ x).lower(jnp.ones((64, 64))).compile()
print(json.dumps([compiled.cost_analysis(), str(compiled.memory_analysis())]))
"""


def test_what_cannot_be_estimated_has_no_numbers(run_python: RunPython) -> None:
    """AWS does not publish the memories of Inferentia1."""
    inf1 = {"NEURONJAX_TARGET": "inf1.xlarge", "NEURON_LOGICAL_NC_CONFIG": None}
    done = run_python(UNKNOWN, SIMULATED | inf1)
    assert done.returncode == 0, done.stderr
    cost, memory = json.loads(done.stdout.splitlines()[-1])
    assert cost.keys() == {"flops", "not estimated"}
    assert "AWS publishes neither" in cost["not estimated"]
    assert cost["not estimated"] in done.stderr
    assert memory == "None"


ATTENTION = """
import json
import jax, jax.numpy as jnp
import neuronjax
queries = jax.ShapeDtypeStruct((1, 512, 4, 64), jnp.bfloat16)
function = jax.nn.dot_product_attention
memory = jax.jit(function).lower(queries, queries, queries).compile().memory_analysis()
estimate = neuronjax.estimate(function, *[queries] * 3, target="trn2.3xlarge", lnc=1)
print(json.dumps([memory.temp_size_in_bytes, estimate.memory["scratch"]]))
"""


def test_memory_is_the_devices(run_python: RunPython) -> None:
    """XLA keeps all scores in memory, of which the device has a block at a time."""
    done = run_python(ATTENTION, SIMULATED)
    assert done.returncode == 0, done.stderr
    analysed, estimated = json.loads(done.stdout.splitlines()[-1])
    assert analysed == estimated < 2 * 4 * 512 * 512
