"""A child process after fork: what would hang says why, at once; the parent goes on."""

from __future__ import annotations

import json

from tests.conftest import RunPython

CODE = """
import json, os, signal, sys, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np

double = jax.jit(lambda x: x * 2)
ready = jax.block_until_ready(double(jnp.arange(4.0)))
big = jnp.ones((1200, 1200))
slow = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, v: jnp.tanh(v @ v), x))
jax.block_until_ready(slow(big))

WORK = {
    "run": lambda: double(ready),
    "compile": lambda: jax.jit(lambda x: x - 1)(ready),
    "put": lambda: jax.device_put(np.ones(3)),
    "copy": lambda: jax.device_put(ready, jax.devices()[1]),
    "pending": lambda: np.asarray(pending),
    "read": lambda: np.asarray(ready).tolist(),
}

def outcome(work):
    try:
        return str(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

pending = slow(big)
inside, outside = os.pipe()
child = os.fork()
if not child:
    signal.alarm(30)
    found = {name: outcome(work) for name, work in WORK.items()}
    os.write(outside, json.dumps(found).encode())
    os._exit(0)
os.close(outside)
assert os.waitpid(child, 0)[1] == 0
print(os.read(inside, 1 << 16).decode())
print(outcome(WORK["run"]))
jax.block_until_ready(pending)
"""


def test_work_in_a_child(start_python: RunPython) -> None:
    done = start_python(CODE, timeout=120)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.splitlines()
    found = json.loads(child)
    assert found.pop("read") == "[0.0, 2.0, 4.0, 6.0]"
    assert found.keys() == {"run", "compile", "put", "copy", "pending"}
    for text in found.values():
        assert "this process was forked" in text
        assert "multiprocessing.get_context('spawn')" in text
    assert parent == "[ 0.  4.  8. 12.]"


def test_a_fork_before_jax_is_used(start_python: RunPython) -> None:
    """Nothing was left behind, and so both can compute."""
    done = start_python(
        """
        import os
        import jax, jax.numpy as jnp
        child = os.fork()
        computed = jnp.arange(3) + 1
        if child:
            assert os.waitpid(child, 0)[1] == 0
        print(computed, flush=True)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1 2 3]"] * 2
