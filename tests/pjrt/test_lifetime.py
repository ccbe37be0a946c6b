"""Nothing is kept that is not needed, and the process ends in peace."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.errors import LifetimeError
from neuronjax.pjrt import abi
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.table import Table
from neuronjax.runtime.event import Event
from neuronjax.runtime.value import MOST_SPECS, ValueSpec
from tests.conftest import RunPython
from tests.pjrt import stress
from tests.pjrt.conftest import Calls

CALLS = int(os.environ.get("LEAK_TEST_CALLS", "2000"))
"""Steps of the test for leaks; 10000 is the thorough number."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_memory_of_the_process_does_not_grow(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    rows = NamedSharding(mesh, P("x"))
    single = jax.jit(lambda x: (x + 1, x.sum()))
    sharded = jax.jit(lambda x: x * 0.5 + x.sum(), donate_argnums=0)

    def run(count: int) -> None:
        x = jax.device_put(np.ones(64, np.float32), neuron_devices[0])
        y = jax.device_put(np.ones((8, 16), np.float32), rows)
        for step in range(count):
            x, total = single(x)
            y = sharded(y)
            if step % 50 == 0:
                float(total)
                y = jax.device_put(np.asarray(y), rows)
        jax.block_until_ready((x, y))

    run(500)
    gc.collect()
    before = resident_bytes()
    run(CALLS)
    gc.collect()
    assert resident_bytes() - before < 20 << 20


def test_handles_end_with_their_objects(calls: Calls, neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)

    def use_everything() -> None:
        x = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("x")))
        compiled = jax.jit(lambda x: (jnp.tanh(x) * 3, x.sum())).lower(x).compile()
        y, total = compiled(x)
        compiled.cost_analysis(), compiled.memory_analysis(), compiled.as_text()
        _ = compiled.output_formats, compiled.output_shardings
        moved = jax.device_put(y, NamedSharding(mesh, P(None)))
        float(total), np.asarray(moved), y.addressable_shards[2].data
        host = jax.device_put(y, y.sharding.with_memory_kind("pinned_host"))
        host.block_until_ready()
        with pytest.raises(jax.errors.JaxRuntimeError):
            neuron_devices[0].memory("nowhere")

    def live() -> dict[str, int]:
        jax.clear_caches()
        gc.collect()
        return dict(calls.plugin.live_handles())

    use_everything()
    before = live()
    for _ in range(3):
        use_everything()
    after = live()
    assert {kind: n for kind, n in after.items() if n != before.get(kind)} == {}


@pytest.mark.parametrize("ended", [0, 2])
def test_shards_are_one_value_while_all_of_them_live(
    neuron_devices: list[jax.Device], ended: int
) -> None:
    """An array made of arrays on single cores, one of which ends; its memory is used again."""
    rows = NamedSharding(jax.make_mesh((4,), ("x",), devices=neuron_devices[:4]), P("x"))
    double = jax.jit(lambda x: 2 * x)

    def shard(core: int, value: float) -> jax.Array:
        return jax.device_put(np.full((1,), value, np.float32), neuron_devices[core])

    shards = [shard(core, core) for core in range(4)]
    for value in (10.0, 20.0, 30.0):
        whole = jax.make_array_from_single_device_arrays((4,), rows, shards)
        np.testing.assert_array_equal(double(whole), [2 * float(x[0]) for x in shards])
        np.testing.assert_array_equal(double(whole), [2 * float(x[0]) for x in shards])
        shards[ended].delete()
        with pytest.raises((ValueError, RuntimeError), match="deleted"):
            double(whole)
        del whole
        shards[ended] = shard(ended, value)


PROGRAMS = 20


def test_programs_leave_nothing_behind(neuron_devices: list[jax.Device]) -> None:
    """Names, fingerprints and layouts that JAX asked for end with the program: there are not as
    many more C strings and arrays as there were programs. Other threads may hold a few."""
    x = jax.device_put(np.ones(4, np.float32), neuron_devices[0])

    def compile_and_ask(number: int) -> None:
        def program(x: jax.Array) -> jax.Array:
            return x + number

        program.__name__ = f"program{number}"
        compiled = jax.jit(program).lower(x).compile()
        _ = compiled.output_formats, compiled.runtime_executable().fingerprint

    def arrays() -> int:
        jax.clear_caches()
        gc.collect()
        return sum(issubclass(type(o), ctypes.Array) for o in gc.get_objects())

    compile_and_ask(0)
    before = arrays()
    for number in range(1, PROGRAMS + 1):
        compile_and_ask(number)
    assert arrays() - before < PROGRAMS


COMPILED = {
    "reduction": lambda mesh: lambda x: x.sum(),
    "loop": lambda mesh: lambda x: jax.lax.fori_loop(0, 3, lambda i, v: v * 2, x),
    "callback": lambda mesh: lambda x: (jax.debug.callback(lambda v: None, x), x + 1)[1],
    "partitioned": lambda mesh: jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compilation_leaves_no_garbage(neuron_devices: list[jax.Device], name: str) -> None:
    """Nothing that only Python's collector of cycles would find; JAX's own suite asks the same."""
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    x = jax.device_put(np.ones(16, np.float32), NamedSharding(mesh, P("x")))
    function = COMPILED[name](mesh)
    debug = gc.get_debug()
    gc.collect()
    gc.disable()
    try:
        jax.block_until_ready(jax.jit(function)(x))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [o for o in gc.garbage if type(o).__module__.startswith("neuronjax")]
    finally:
        gc.set_debug(debug)
        gc.garbage.clear()
        gc.enable()
    assert not ours


def test_shapes_are_forgotten(neuron_devices: list[jax.Device]) -> None:
    """A process that puts arrays of ever new shapes does not keep them all."""
    value = np.zeros(MOST_SPECS + 500, np.int8)
    for size in range(1, len(value)):
        jax.device_put(value[:size], neuron_devices[0]).delete()
    gc.collect()
    kept = sum(type(o) is ValueSpec and o.tensor.dtype == np.int8 for o in gc.get_objects())
    assert 0 < kept <= MOST_SPECS


ENDINGS = {
    "live arrays": "x = jnp.ones(1000) * 2; y = jax.device_put(np.ones(8), sharding)",
    "pending work": (
        "x = jnp.ones((600, 600));"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, v: jnp.tanh(v @ v), x));"
        "y = f(f(f(x)))"
    ),
    "pending sharded work": (
        "x = jax.device_put(np.ones((8, 300, 300), np.float32), sharding);"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, v: jnp.tanh(v @ v), x));"
        "y = f(f(f(x)))"
    ),
    "dropped pending work": (
        "x = jax.device_put(np.ones((8, 300, 300), np.float32), sharding);"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, v: jnp.tanh(v @ v), x));"
        "[f(x) for _ in range(3)]; None"
    ),
    "pending callbacks": (
        "x = jax.device_put(np.ones(8, np.float32), sharding);"
        "wait = lambda v: (time.sleep(0.2), v)[1];"
        "g = lambda v: jax.pure_callback(wait, jax.ShapeDtypeStruct(v.shape, v.dtype), v);"
        "f = jax.jit(jax.shard_map(g, mesh=mesh, in_specs=jax.P('x'), out_specs=jax.P('x')));"
        "y = f(x)"
    ),
    "pending copy to the host": (
        "x = jax.device_put(np.ones((8, 300, 300), np.float32), sharding);"
        "f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, v: jnp.tanh(v @ v), x));"
        "y = f(x); y.copy_to_host_async()"
    ),
    "debug prints": (
        "f = jax.jit(lambda x: jax.debug.print('{}', x));"
        "[f(i) for i in range(3)]"
    ),
    "an exit in the middle": "x = jnp.ones(3) + 1; sys.exit(0)",
    "cycles": "x = jnp.ones(3) + 1; loop = [x]; loop.append(loop); del x, loop",
    "executables in globals": (
        "f = jax.jit(jnp.sin).lower(1.0).compile(); g = jax.jit(lambda x: x.sum());"
        "g(jax.device_put(np.ones(8), sharding))"
    ),
}  # fmt: skip


@pytest.mark.parametrize("stubs", ["1", "0"])
@pytest.mark.parametrize("name", ENDINGS)
def test_clean_exit(name: str, stubs: str, run_python: RunPython) -> None:
    code = (
        "import gc; gc.unfreeze()\n"  # modules are collected, as in a process that was not forked
        "import sys, time, numpy as np, jax, jax.numpy as jnp\n"
        "mesh = jax.make_mesh((8,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))\n"
        "sharding = jax.NamedSharding(mesh, jax.P('x'))\n"
    )
    done = run_python(code + ENDINGS[name], {"NEURONJAX_NATIVE_STUBS": stubs})
    assert (done.returncode, done.stderr) == (0, "")


JIT = "jax.jit(lambda x: x + 1)(1.0)"
AHEAD = """
from jax.experimental.topologies import get_topology_desc
device = get_topology_desc(platform="neuron", topology_name="trn2.48xlarge").devices[0]
x = jax.ShapeDtypeStruct((4,), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
jax.jit(lambda x: x + 1).lower(x).compile()
"""
MOMENTS = {
    "in the middle of it": ("neuronjax.runtime.client:Client", "compile", 600, JIT),
    "ahead of time": ("neuronjax.pjrt.topology", "compile_ahead", 600, AHEAD),
    "before jaxlib has the program": (
        "neuronjax.pjrt.executable", "LoadedExecutable_GetExecutable", 1, JIT,
    ),
}  # fmt: skip
"""What a compilation calls, the seconds that it is to take, and what compiles."""


@pytest.mark.parametrize("name", MOMENTS)
def test_a_process_that_is_interrupted_while_it_compiles_ends(
    name: str, run_python: RunPython
) -> None:
    """The compilation may go on in a thread of jaxlib, for which JAX does not wait."""
    owner, call, seconds, work = MOMENTS[name]
    slow = f"""
import pkgutil, signal, time, jax
owner = pkgutil.resolve_name("{owner}")
function = owner.{call}

def slow(*arguments):
    signal.raise_signal(signal.SIGINT)
    for _ in range({seconds} * 100):
        time.sleep(0.01)
    return function(*arguments)

owner.{call} = slow
"""
    done = run_python(slow + work, timeout=25)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_platform_starts_again_after_clear_backends(run_python: RunPython) -> None:
    done = run_python(
        """
        import gc, jax, jax.numpy as jnp, neuronjax
        from jax.extend.backend import clear_backends
        print(float(jnp.ones(3).sum()), len(jax.devices()))
        clear_backends(); gc.collect()
        neuronjax.configure(num_cores=2)
        print(float(jnp.ones(3).sum()), len(jax.devices()))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["3.0", "8", "3.0", "2"]


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("origin", ["JAX", "runtime"])
def test_a_function_that_waits_for_an_event_may_destroy_it(origin: str, native: bool) -> None:
    """It finds the event ready, and nobody writes to the record afterwards."""
    calls = Calls(Table(Plugin(watched=True), native))
    event = Event()
    handle = calls("Event_Create").event if origin == "JAX" else calls.plugin.new_event(event)
    seen = []

    def destroy(error: int | None, argument: int | None) -> None:
        seen.append((error, calls("Event_IsReady", event=handle).is_ready))
        calls("Event_Destroy", event=handle)

    callback = abi.EVENT_CALLBACK(destroy)
    calls("Event_OnReady", event=handle, callback=ctypes.cast(callback, ctypes.c_void_p).value)
    calls("Event_Set", event=handle) if origin == "JAX" else event.set()
    assert seen == [(None, True)]
    assert handle not in calls.plugin.handles
    calls.plugin.handles.inspect()


def test_writing_to_a_freed_record_is_found_out() -> None:
    handles = Plugin(watched=True).handles
    handle = handles.add(object())
    handles.drop(handle)
    handles.inspect()
    ctypes.c_uint8.from_address(handle).value = 1
    with pytest.raises(LifetimeError, match="freed memory of 8 bytes was written to: 01 5a"):
        handles.inspect()


def test_small_values_that_another_thread_has_just_ended_are_no_concern() -> None:
    values = Plugin().values
    some = ctypes.c_uint64(1)
    values.use_list(ctypes.addressof(some), lambda: 0)
    values.collect()


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_everything_at_once(native: bool) -> None:
    """A few seconds of what `python -m tests.pjrt.stress` does for as long as one likes."""
    report, errors = stress.run(seconds=3, threads=4, seed=0, native_stubs=native)
    assert report["ended"] == 0, errors[:4000]
    assert report["steps"] > 0
