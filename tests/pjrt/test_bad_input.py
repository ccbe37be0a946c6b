"""Bad input: a clear Python error, a living process, and everything still works afterwards."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from functools import partial
from operator import setitem
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.errors import TopologyError
from neuronjax.machine.mesh import make_mesh
from neuronjax.runtime import memory
from tests.conftest import RunPython

JaxError = jax.errors.JaxRuntimeError
Refused = (JaxError, ValueError)
"""JAX raises the same error as ValueError from its fast path, on calls after the first."""
GIB = 1 << 30


@pytest.fixture(autouse=True)
def still_works(
    neuron_devices: list[jax.Device], caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """After each case: no memory is lost, and programs run on one core and on all."""
    before = [device.memory_stats()["bytes_in_use"] for device in neuron_devices]
    yield
    assert float(jax.jit(lambda x: x * 2)(21.0)) == 42.0
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("x")))
    assert float(jax.jit(jnp.sum)(x)) == 8.0
    del x
    caplog.get_records("call").clear()  # records of exceptions hold frames, and these hold arrays
    gc.collect()
    assert [device.memory_stats()["bytes_in_use"] for device in neuron_devices] == before


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NEURONJAX_TARGET": "trn9.metal"}, ["trn9.metal", "trn2.48xlarge"]),
        (
            {"NEURONJAX_TARGET": "trn1.2xlarge", "NEURON_LOGICAL_NC_CONFIG": "2"},
            ["trn1.2xlarge", "2"],
        ),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, ["NEURON_LOGICAL_NC_CONFIG='3'", "1 or 2"]),
        ({"NEURON_RT_VISIBLE_CORES": "0-8"}, ["NEURON_RT_VISIBLE_CORES", "core 8", "0-7"]),
        ({"NEURON_RT_VISIBLE_CORES": "0-3,3"}, ["NEURON_RT_VISIBLE_CORES", "core 3", "twice"]),
        ({"NEURON_RT_VISIBLE_CORES": "x"}, ["NEURON_RT_VISIBLE_CORES='x'", "0-3"]),
        ({"NEURON_RT_NUM_CORES": "9"}, ["NEURON_RT_NUM_CORES=9", "8"]),
        ({"NEURONJAX_NUMERICS": "nope"}, ["NEURONJAX_NUMERICS='nope'", "ieee"]),
        ({"NEURONJAX_DUMP_TO": "/dev/null/x"}, ["NEURONJAX_DUMP_TO='/dev/null/x'", "written to"]),
        (
            {"NEURON_CC_FLAGS": "--lnc=2", "NEURON_LOGICAL_NC_CONFIG": "1"},
            ["--lnc=2", "NEURON_LOGICAL_NC_CONFIG is 1"],
        ),
    ],
    ids=str,
)
def test_machine_that_cannot_be(
    env: dict[str, str], words: list[str], run_python: RunPython
) -> None:
    """The message reaches the user, and the process ends by an exception or goes on."""
    done = run_python(
        """
        import jax
        try:
            jax.devices("neuron")
        except Exception as error:
            print(error)
        print("cpu", jax.device_count("cpu"))
        """,
        env,
    )
    everything = done.stdout + done.stderr
    assert [word for word in words if word not in everything] == [], everything
    assert done.returncode in (0, 1), everything


@pytest.mark.parametrize("platforms", ["neuron", "cpu,neuron", ""])
def test_a_wrong_variable_ends_in_one_line(platforms: str, run_python: RunPython) -> None:
    """Whichever call needs the platform first."""
    env = {"JAX_PLATFORMS": platforms, "NEURONJAX_TARGET": "trn9.metal"}
    done = run_python("import jax; jax.devices('neuron')", env)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("neuronjax: Target 'trn9.metal' is not a known instance")


def test_an_error_after_a_wrong_variable_has_its_traceback(run_python: RunPython) -> None:
    code = """
        import jax
        try:
            jax.devices("neuron")
        except RuntimeError:
            pass
        raise ValueError("another one")
    """
    done = run_python(code, {"NEURONJAX_TARGET": "trn9.metal"})
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: another one\n")


def test_mesh_bigger_than_the_machine(neuron_devices: list[jax.Device]) -> None:
    with pytest.raises(TopologyError, match=r"16"):
        make_mesh({"x": 16})
    with pytest.raises(ValueError, match=r"8.*16|16.*8"):
        jax.make_mesh((16,), ("x",))


def test_deleted_array(neuron_devices: list[jax.Device]) -> None:
    x = jnp.arange(4.0) + 1
    x.delete()
    for use in (np.asarray, lambda x: x + 1, jax.jit(lambda x: x * 2), jax.block_until_ready):
        with pytest.raises(RuntimeError, match="deleted"):
            use(x)


def test_one_deleted_shard(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("x")))
    x.addressable_shards[5].data.delete()
    with pytest.raises((ValueError, RuntimeError), match="deleted"):
        jax.jit(jnp.sum)(x)
    with pytest.raises((ValueError, RuntimeError), match="deleted"):
        np.asarray(x.addressable_shards[5].data)


def test_array_larger_than_a_core(neuron_devices: list[jax.Device]) -> None:
    fill = jax.jit(lambda: jnp.zeros((13, GIB), jnp.int8))
    with pytest.raises(JaxError, match="RESOURCE_EXHAUSTED") as caught:
        fill()
    message = str(caught.value)
    assert "Failed to allocate 13.000GB" in message
    assert re.search(r"ND 0:NC 0 .*\|.*96\.000MB.*12\.000GB", message)
    assert "NEURONJAX_TARGET" in message


def test_memory_of_a_core_fills_up_and_empties(
    neuron_devices: list[jax.Device], request: pytest.FixtureRequest
) -> None:
    """The books of a core are made small: nobody's machine needs to hold its 12 GiB."""
    from neuronjax.pjrt import plugin

    ledger = plugin.tables()[0].plugin.clients[-1].client.ledger
    device = neuron_devices[6]
    counts, limit = ledger._counts[6], memory.CORE_COUNTS.index("limit")
    request.addfinalizer(partial(setitem, counts, limit, counts[limit]))
    counts[limit] = device.memory_stats()["bytes_in_use"] + (40 << 20)
    block = np.zeros((4, 1 << 20), np.float32)
    step = jax.jit(lambda x: x * 2 + 1)
    kept = [jax.device_put(block, device)]
    kept.append(step(kept[0]))
    with pytest.raises(Refused, match=r"RESOURCE_EXHAUSTED.*Failed to allocate 0\.016GB"):
        step(kept[0])
    with pytest.raises(JaxError, match=r"RESOURCE_EXHAUSTED.*on ND 0:NC 6"):
        jax.device_put(block, device)
    with pytest.raises(JaxError, match="RESOURCE_EXHAUSTED"):
        jax.device_put(kept[0], device, may_alias=False)
    del kept[1]
    np.testing.assert_array_equal(step(kept[0]), 1)
    np.testing.assert_array_equal(jax.device_put(block, device), 0)


def test_memory_of_the_host_fills_up(
    neuron_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = np.zeros((32, 1 << 20), np.float32)
    make = jax.jit(lambda: jnp.zeros((64, 1 << 20), jnp.float32))
    with monkeypatch.context() as patch:
        patch.setattr(memory, "host_available_bytes", lambda: memory.HOST_RESERVE_BYTES + 1)
        for use in (lambda: jax.device_put(block), make):
            with pytest.raises(JaxError, match=r"RESOURCE_EXHAUSTED.*of this machine's memory"):
                use()
    assert float(make()[0, 0]) == 0


def test_program_that_xla_cannot_run(neuron_devices: list[jax.Device]) -> None:
    """A custom call that nobody implements."""
    call = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((4,), np.float32))
    with pytest.raises(JaxError, match=r"no_such_target"):
        jax.jit(lambda x: call(x) + 1)(np.ones(4, np.float32))


def test_program_that_does_not_compile(neuron_devices: list[jax.Device]) -> None:
    with pytest.raises(JaxError, match=r"no_such_option|No such compile option"):
        jax.jit(jnp.sin).lower(1.0).compile(compiler_options={"xla_no_such_option": "1"})


def test_constraint_that_does_not_divide(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    with pytest.raises(ValueError, match="does not evenly divide"):
        jax.device_put(np.ones(9, np.float32), NamedSharding(mesh, P("x")))


def raising(value: np.ndarray) -> np.ndarray:
    raise KeyError("the callback's own words")


def pure(x: Any) -> Any:
    return jax.pure_callback(raising, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def effectful(ordered: bool) -> Callable[[Any], Any]:
    return lambda x: io_callback(
        raising, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=ordered
    )


CALLBACKS: dict[str, Callable[[Any], Any]] = {
    "pure": pure,
    "unordered": effectful(ordered=False),
    "ordered": effectful(ordered=True),
    "in a loop": lambda x: lax.fori_loop(0, 3, lambda i, v: pure(v), x),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", CALLBACKS)
def test_exception_in_a_callback(name: str, neuron_devices: list[jax.Device]) -> None:
    with pytest.raises(JaxError, match="the callback's own words"):
        jax.jit(CALLBACKS[name])(np.ones(4, np.float32)).block_until_ready()
    jax.clear_caches()
    runtime_tokens = jax._src.dispatch.runtime_tokens
    runtime_tokens.clear()


def test_exception_in_a_callback_of_a_sharded_program(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("x")))
    mapped = jax.shard_map(pure, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    y = jax.jit(mapped)(x)
    for use in (jax.block_until_ready, np.asarray, jax.jit(lambda y: y + 1)):
        with pytest.raises(JaxError, match="the callback's own words"):
            jax.block_until_ready(use(y))


def test_callback_of_the_wrong_shape(neuron_devices: list[jax.Device]) -> None:
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(JaxError, match=r"(?i)shape"):
        jax.jit(lambda x: jax.pure_callback(lambda v: v, shape, x))(
            np.ones(4, np.float32)
        ).block_until_ready()


INTERRUPTED = """
    import os, signal, threading, time
    import jax, jax.numpy as jnp, numpy as np
    jax.devices()  # what is interrupted is the work, not the start
    {setup}
    done = threading.Event()
    def press():
        while not done.wait(0.7):
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=press, daemon=True).start()
    start = time.monotonic()
    try:
        while time.monotonic() < start + 10:
            {work}
        print("never")
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        done.set()
        print("interrupted")
    print(float(jax.jit(lambda x: x + 1)(1.0)))
"""

LONG_STEPS = {
    "one long step": (
        "x = jnp.ones((700, 700));"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, v: jnp.tanh(v @ v), x)); f(x)",
        "f(x).block_until_ready()",
    ),
    "long steps that nobody waits for": (
        "x = jnp.ones((256, 256));"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, v: jnp.tanh(v @ v), x)); f(x)",
        "x = f(x)",
    ),
    "many short steps": ("x = jnp.ones(4); f = jax.jit(lambda x: x + 1); f(x)", "x = f(x)"),
    "many sharded steps": (
        "rows = jax.NamedSharding(jax.make_mesh((8,), ('x',)), jax.P('x'));"
        "x = jax.device_put(np.ones(8, np.float32), rows);"
        "f = jax.jit(lambda x: x * 2 - x.sum()); f(x)",
        "x = f(x)",
    ),
    "transfers": ("x = np.ones((100, 100))", "np.asarray(jax.device_put(x))"),
    "compilation": ("n = 0", "n += 1; jax.jit(lambda x: x + n)(1.0)"),
}


@pytest.mark.parametrize("name", LONG_STEPS)
def test_control_c(name: str, run_python: RunPython) -> None:
    """Pressed until it is heard: JAX has a bare ``except`` around a call for layouts."""
    setup, work = LONG_STEPS[name]
    done = run_python(INTERRUPTED.format(setup=setup, work=work))
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "2.0"]), done.stderr
    assert not done.stderr


COLLECTING = """
    import gc, os, signal, time
    import jax
    jax.devices()
    def press(phase, info):
        if phase == "start":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
    gc.callbacks.append(press)
    try:
        gc.collect()
        gc.callbacks.remove(press)
        start = time.monotonic()
        while time.monotonic() < start + 10:
            pass
        print("lost")
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_control_c_while_garbage_is_collected(run_python: RunPython) -> None:
    """Python would report it and go on."""
    done = run_python(COLLECTING)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
