"""NaN and indices out of bounds as JAX sees them: the error, where it comes out, and after it."""

import json

from tests.conftest import RunPython

WATCHED = {"NEURON_FAIL_ON_NAN": "1", "NEURONJAX_FAIL_ON_OUT_OF_BOUNDS": "1"}

PRELUDE = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

found = {}

def told(name, call):
    try:
        jax.block_until_ready(call())
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = ""

x = jnp.arange(4.0)
"""

ONE_CORE = """
log = jax.jit(jnp.log)
told("first call", lambda: log(x - 9))
told("good call", lambda: log(x + 1))
told("fast call", lambda: log(x - 9))
bad = log(x - 9)
told("as numpy", lambda: np.asarray(bad))
told("used by a program", lambda: jax.jit(lambda x: x * 0)(bad))
told("used by an op", lambda: bad + 1)
told("copied", lambda: jax.device_put(bad, jax.devices()[1]))
told("copied to cpu", lambda: jax.device_put(bad, jax.devices("cpu")[0]))

step = jax.jit(lambda state: (state - 1, jnp.sqrt(state).sum()), donate_argnums=0)

def train():
    state = x + 2
    for _ in range(6):
        state, loss = step(state)
    return loss

told("later steps of a loop", train)
told("index", lambda: jax.jit(lambda x, i: x[i])(x, jnp.array([0, 4])))
lines = []

def with_callback(x):
    jax.debug.callback(lambda x: lines.append(float(x)), x[1])
    return jnp.log(x + 1)

told("with a callback", lambda: jax.jit(with_callback)(x))
jax.effects_barrier()
found["callback ran"] = str(lines)

told("good at the end", lambda: log(x + 1))
print(json.dumps(found))
"""

NAN, INDEX = (
    "JaxRuntimeError: INTERNAL: NRT_EXEC_COMPLETED",
    "JaxRuntimeError: INTERNAL: NRT_EXEC_OOB",
)


def outcomes(run_python, code):
    done = run_python(PRELUDE + code, WATCHED, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_core(run_python: RunPython) -> None:
    found = outcomes(run_python, ONE_CORE)
    assert {name: text[: len(NAN)] for name, text in found.items() if NAN in text} == dict.fromkeys(
        (
            "first call", "fast call", "as numpy", "used by a program", "used by an op", "copied",
            "copied to cpu", "later steps of a loop",
        ),
        NAN,
    )  # fmt: skip
    assert found["index"].startswith(INDEX)
    assert found["callback ran"] == "[1.0]"
    assert {found[name] for name in ("good call", "with a callback", "good at the end")} == {""}


MESH = """
mesh = Mesh(np.array(jax.devices()[:4]), ("core",))

def put(value, *spec):
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh, P(*spec)))

table = np.arange(32, dtype=np.float32).reshape(16, 2)
good, bad = [0, 5, 15, 9], [0, 5, 16, 9]
gradient = jax.jit(jax.grad(lambda table, ids: jnp.sum(table[ids] ** 2)))
look_up = jax.jit(lambda table, ids: table[ids])
told("sharded table", lambda: gradient(put(table, "core"), put(good)))
told("sharded table, bad", lambda: gradient(put(table, "core"), put(bad)))
told("sharded ids", lambda: look_up(put(table), put(good, "core")))
told("sharded ids, bad", lambda: look_up(put(table), put(bad, "core")))

def log_on_core(x):
    return lax.psum(jnp.log(x - 9 * (lax.axis_index("core") == 2)), "core")

def lose_on_core(x):
    y = jnp.log(x - 9 * (lax.axis_index("core") == 2))
    return jnp.where(x > 2, y, 0)

def slice_by_core(x):
    return lax.dynamic_slice(x, (lax.axis_index("core"),), (1,))

def over_cores(body, out):
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("core"), out_specs=out))

told("NaN on a core", lambda: over_cores(log_on_core, P())(put(np.ones(8), "core")))
told("NaN lost on a core", lambda: over_cores(lose_on_core, P("core"))(put(np.ones(8), "core")))
told("own slice", lambda: over_cores(slice_by_core, P("core"))(put(np.ones(16), "core")))
told("own slice, bad", lambda: over_cores(slice_by_core, P("core"))(put(np.ones(12), "core")))

def with_callback(x):
    jax.debug.callback(lambda x: None, x)
    return jnp.log(x + 1).sum()

told("with a callback", lambda: jax.jit(with_callback)(put(np.ones(8), "core")))
told("good at the end", lambda: gradient(put(table, "core"), put(good)))
print(json.dumps(found))
"""


def test_several_cores(run_python: RunPython) -> None:
    found = outcomes(run_python, MESH)
    expected = {
        "sharded table, bad": (INDEX, "scatter f32[16,2]"),
        "sharded ids, bad": (INDEX, "gather f32[16,2]", "on core 2 of 4"),
        "NaN on a core": (NAN, "result 0, f32[2], has NaN"),
        "NaN lost on a core": (NAN, "select f32[2]", "on core 2 of 4"),
        "own slice, bad": (INDEX, "dynamic_slice f32[3]", "on core 3 of 4"),
    }
    for name, words in expected.items():
        assert all(word in found[name] for word in words), found[name]
    assert {name for name, text in found.items() if text} == expected.keys()
