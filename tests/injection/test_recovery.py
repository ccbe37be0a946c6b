"""A training that dies on the way and goes on from its checkpoint ends as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import RunPython

TRAINING = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import neuronjax

STEPS = 8
mesh = Mesh(np.array(jax.devices("neuron")[:4]), ("data",))
everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
optimizer = optax.adam(0.05)

def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["in"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)

@jax.jit
def train_step(state, x, y):
    params, moments = state
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), loss

def batch(step):
    x = np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32)
    return jax.device_put(x, split), jax.device_put(np.sin(x[:, :1]), split)

def beginning():
    chance = np.random.default_rng(0)
    params = {"in": chance.normal(size=(8, 16)), "out": chance.normal(size=(16, 1))}
    params = jax.device_put(jax.tree.map(np.float32, params), everywhere)
    return params, jax.device_put(optimizer.init(params), everywhere)

def train(folder, losses):
    state = beginning()
    with ocp.CheckpointManager(folder) as checkpoints:
        last = checkpoints.latest_step() or 0
        if last:
            state = checkpoints.restore(last, args=ocp.args.StandardRestore(state))
        for step in range(last + 1, STEPS + 1):
            state, loss = train_step(state, *batch(step))
            losses[step] = float(loss)
            checkpoints.save(step, args=ocp.args.StandardSave(state))

folder = sys.argv[1]
found = {"undisturbed": {}}
train(f"{folder}/undisturbed", found["undisturbed"])
for fault in sys.argv[2:]:
    before, after = {}, {}
    try:
        with neuronjax.inject_faults(f"{fault} program=jit_train_step"):
            train(f"{folder}/{fault}", before)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        train(f"{folder}/{fault}", after)
        found[fault] = before, after, str(error)
print(json.dumps(found))
"""

FAULTS = {
    "core_dies core=2 step=6": (6, "NRT_EXEC_HW_ERR_NC_UE (status 1202)"),
    "out_of_memory core=1 step=4": (4, "NRT_RESOURCE (status 4)"),
}


def test_a_training_resumes(run_python: RunPython, tmp_path: Path) -> None:
    arguments = [str(tmp_path), *FAULTS]
    done = run_python(f"import sys\nsys.argv[1:] = {arguments!r}\n{TRAINING}", timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    undisturbed = found.pop("undisturbed")
    assert undisturbed["8"] < undisturbed["1"]
    assert found.keys() == FAULTS.keys()
    for fault, (step, words) in FAULTS.items():
        before, after, error = found[fault]
        assert words in error
        assert list(map(int, before)) == list(range(1, step))
        assert list(map(int, after)) == list(range(step, 9))
        assert before | after == undisturbed
