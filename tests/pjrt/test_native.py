"""Machine code answers as the Python callbacks do, and leads into them safely."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from neuronjax.errors import DeviceMemoryError
from neuronjax.pjrt import abi, native
from neuronjax.pjrt.getters import BUFFER_DESTROY_LAST
from neuronjax.pjrt.native_ir import STUBS
from neuronjax.pjrt.plugin_state import Plugin
from neuronjax.pjrt.table import Table, callbacks, implementations
from neuronjax.pjrt.values import SMALL_BYTES
from neuronjax.runtime.event import Event
from tests.conftest import RunPython
from tests.pjrt.conftest import CallError, Calls


class Both:
    """The generated and the Python function of a call, on the same records."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._python = {
            name: abi.CALLBACK(callback)
            for name, callback in callbacks(calls.plugin, implementations()).items()
            if name in STUBS
        }

    def python(self, name: str, **fields: Any) -> Any:
        address = ctypes.cast(self._python[name], ctypes.c_void_p).value
        return self.calls.at(address or 0, name, **fields)

    def fast(self, name: str, **fields: Any) -> Any:
        return self.calls(name, **fields)

    def same(self, name: str, **fields: Any) -> dict[str, Any]:
        """Calls both; every byte of the argument records must agree."""
        fast, python = self.fast(name, **fields), self.python(name, **fields)
        assert bytes(fast) == bytes(python), name
        return {field: getattr(fast, field) for field, _ in fast._fields_}


@pytest.fixture(scope="module")
def both(calls: Calls) -> Both:
    return Both(calls)


def executable_ranges() -> list[range]:
    """Memory with generated code: executable pages that no file backs."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    fields = [line.split() for line in lines]
    spans = [entry[0].split("-") for entry in fields if "x" in entry[1] and "/" not in entry[-1]]
    return [range(int(first, 16), int(last, 16)) for first, last in spans]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map that Linux publishes")
def test_the_table_uses_every_stub(calls: Calls) -> None:
    ranges = executable_ranges()
    assert len(STUBS) >= 18
    for name in STUBS:
        assert any(calls.table.slots[name] in span for span in ranges), name


VALUES = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.complex64),
    "rank 6": np.zeros((1, 2, 1, 2, 1, 2), np.bool_),
}


@pytest.fixture(params=VALUES)
def buffer(request: pytest.FixtureRequest, both: Both) -> Iterator[tuple[int, np.ndarray]]:
    value = VALUES[request.param]
    handle = both.calls.put(value, device=5)
    yield handle, value
    both.calls("Buffer_Destroy", buffer=handle)


def test_buffer_getters(buffer: tuple[int, np.ndarray], both: Both) -> None:
    handle, value = buffer
    state = both.calls.state()
    assert both.same("Buffer_Device", buffer=handle)["device"] == state.device_handles[5]
    memory = both.same("Buffer_Memory", buffer=handle)["memory"]
    assert memory == state.memory_handles[5, "device"]
    kind = both.same("Memory_Kind", memory=memory)
    assert ctypes.string_at(kind["kind"], kind["kind_size"]) == b"device"
    codes = {"float32": 11, "int64": 5, "complex64": 14, "bool": 1}
    assert both.same("Buffer_ElementType", buffer=handle)["type"] == codes[value.dtype.name]
    for prefix, field in (("", "dims"), ("Unpadded", "unpadded_dims")):
        found = both.same(f"Buffer_{prefix}Dimensions", buffer=handle)
        assert found["num_dims"] == value.ndim
        assert tuple((ctypes.c_int64 * value.ndim).from_address(found[field])) == value.shape
    assert both.same("Buffer_IsDeleted", buffer=handle)["is_deleted"] is False


def test_layouts(buffer: tuple[int, np.ndarray], both: Both) -> None:
    """Row-major, by a text that lives as long as the process whatever JAX does with it."""
    handle, value = buffer
    layout = both.same("Layouts_PJRT_Buffer_MemoryLayout", buffer=handle)["layout"]
    for _ in range(2):
        lent = both.same("Layouts_MemoryLayout_Serialize", layout=layout)
        text = ctypes.string_at(lent["serialized_bytes"], lent["serialized_bytes_size"])
        assert text.decode() == "{" + ",".join(map(str, reversed(range(value.ndim)))) + "}"
        give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lent["serialized_layout_deleter"])
        give_back(lent["serialized_layout"])
        for destroy in (both.fast, both.python):
            destroy("Layouts_MemoryLayout_Destroy", layout=layout)


def test_what_no_buffer_has(buffer: tuple[int, np.ndarray], both: Both) -> None:
    assert both.same("Buffer_IsOnCpu", buffer=buffer[0])["is_on_cpu"] is False
    found = both.same("Buffer_DynamicDimensionIndices", buffer=buffer[0])
    assert (found["dynamic_dim_indices"], found["num_dynamic_dims"]) == (None, 0)


def test_deletion_shows(both: Both) -> None:
    handle = both.calls.put(VALUES["matrix"])
    both.calls("Buffer_Delete", buffer=handle)
    assert both.same("Buffer_IsDeleted", buffer=handle)["is_deleted"] is True
    for ask in (both.fast, both.python):
        with pytest.raises(CallError, match="deleted") as caught:
            ask("Buffer_ReadyEvent", buffer=handle)
        assert caught.value.status == "FAILED_PRECONDITION"
    both.calls("Buffer_Destroy", buffer=handle)


def test_ready_event(buffer: tuple[int, np.ndarray], both: Both) -> None:
    handle, value = buffer
    both.calls.get(handle, value)
    for _ in range(100):  # under stress it looks unfinished now and then, until that is noted
        event = both.python("Buffer_ReadyEvent", buffer=handle).event
        both.calls("Event_Await", event=event)
        both.calls("Event_Destroy", event=event)
        if event == both.calls.plugin.ready_event:
            break
    assert event == both.calls.plugin.ready_event
    assert both.fast("Buffer_ReadyEvent", buffer=handle).event == event


@pytest.mark.parametrize("how", ["fast", "python"])
def test_destruction_ends_the_value_with_its_last_shard(how: str, both: Both) -> None:
    destroy = getattr(both, how)
    known = both.calls.plugin.values.values
    handle = both.calls.put(VALUES["matrix"])
    in_use = both.calls.state().client.ledger.stats(0).bytes_in_use
    assert handle in known
    destroy("Buffer_Destroy", buffer=handle)
    assert both.calls.state().client.ledger.stats(0).bytes_in_use == in_use - 24
    assert handle not in known


@pytest.mark.parametrize("how", ["fast", "python"])
@pytest.mark.parametrize("seed", range(5))
def test_shards_may_be_destroyed_in_any_order(how: str, seed: int, both: Both) -> None:
    destroy = getattr(both, how)
    values = both.calls.plugin.values
    spec = _sharded_spec(both)
    left = {both.calls.state().add_value(spec): 4 for _ in range(3)}
    shards = [(base, base + 64 * index) for base in left for index in range(4)]
    random = np.random.default_rng(seed)
    for base, shard in random.permutation(shards):
        destroy("Buffer_Destroy", buffer=int(shard))
        left[base] -= 1
        if random.integers(2):
            values.collect()
            assert {base for base in left if base in values.values} == {b for b in left if left[b]}
    values.collect()
    assert not left.keys() & values.values.keys()


@pytest.mark.parametrize(("size", "waits"), [(SMALL_BYTES, True), (SMALL_BYTES + 1, False)])
def test_small_values_end_when_others_are_made(size: int, waits: bool, both: Both) -> None:
    known = both.calls.plugin.values.values
    handle = both.calls.put(np.zeros(size, np.uint8))
    both.fast("Buffer_Destroy", buffer=handle)
    assert (handle in known) == waits
    value = known.get(handle)
    other = both.calls.put(VALUES["matrix"])
    assert value is None or value.array is None
    both.fast("Buffer_Destroy", buffer=other)


@pytest.mark.parametrize("how", ["fast", "python"])
def test_memory_of_small_values_is_there_when_it_is_needed(how: str, both: Both) -> None:
    """Values that wait to be ended are ended before a core is full."""
    ledger = both.calls.state().client.ledger
    before = ledger.stats(0)
    handles = [both.calls.put(np.zeros(SMALL_BYTES, np.uint8)) for _ in range(4)]
    for handle in handles:
        getattr(both, how)("Buffer_Destroy", buffer=handle)
    free = before.bytes_limit - before.bytes_in_use
    ledger.allocate((0,), free)
    with pytest.raises(DeviceMemoryError):
        ledger.allocate((0,), 1)
    ledger.free((0,), free)
    assert ledger.stats(0).bytes_in_use == before.bytes_in_use


@pytest.mark.parametrize("how", ["fast", "python"])
def test_threads_destroy_small_values(how: str, both: Both) -> None:
    values, count = both.calls.plugin.values, 400
    values.collect()
    before = set(values.values)

    def destroy(handles: list[int]) -> None:
        for handle in handles:
            getattr(both, how)("Buffer_Destroy", buffer=handle)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            handles = [both.calls.put(VALUES["scalar"]) for _ in range(count)]
            list(pool.map(destroy, [handles[part::4] for part in range(4)]))
    values.collect()
    assert set(values.values) == before


def _sharded_spec(both: Both) -> Any:
    """A value of four shards that owns no memory."""
    client = both.calls.state().client
    cores = range(4)
    shards = [(client.put(VALUES["matrix"], client.devices[i], "pinned_host"), 0) for i in cores]
    return client.gather(shards, client.host.placement(cores))


def new_event(both: Both) -> int:
    return both.calls("Event_Create").event


@pytest.mark.parametrize("how", ["fast", "python"])
def test_event_of_success(how: str, both: Both) -> None:
    call = getattr(both, how)
    event, seen = new_event(both), []
    callback = abi.EVENT_CALLBACK(lambda error, user: seen.append((error, user)))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert both.same("Event_IsReady", event=event)["is_ready"] is False
    both.calls("Event_OnReady", event=event, callback=address, user_arg=7)
    assert seen == []
    both.calls("Event_Set", event=event)
    assert both.same("Event_IsReady", event=event)["is_ready"] is True
    call("Event_Error", event=event)
    call("Event_Await", event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=8)
    assert seen == [(None, 7), (None, 8)]
    call("Event_Destroy", event=event)
    assert event not in both.calls.plugin.handles


@pytest.mark.parametrize("how", ["fast", "python"])
def test_event_of_failure(how: str, both: Both) -> None:
    call = getattr(both, how)
    event, seen = new_event(both), []

    def note(error: int, user: int) -> None:
        seen.append((both.calls.error(error).message, user))

    callback = abi.EVENT_CALLBACK(note)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    both.calls("Event_OnReady", event=event, callback=address, user_arg=1)
    text = ctypes.create_string_buffer(b"out of luck")
    message = {"error_message": ctypes.addressof(text), "error_message_size": 11}
    both.calls("Event_Set", event=event, error_code=13, **message)
    assert (
        both.same("Event_IsReady", event=event)["is_ready"] is False
    )  # the error comes through the callback
    for name in ("Event_Error", "Event_Await"):
        with pytest.raises(CallError, match="out of luck"):
            call(name, event=event)
    call("Event_OnReady", event=event, callback=address, user_arg=2)
    assert seen == [("out of luck", 1), ("out of luck", 2)]
    call("Event_Destroy", event=event)
    assert event not in both.calls.plugin.handles


@pytest.mark.parametrize("how", ["fast", "python"])
def test_shared_ready_event_outlives_its_destruction(how: str, both: Both) -> None:
    ready = both.calls.plugin.ready_event
    getattr(both, how)("Event_Destroy", event=ready)
    assert both.same("Event_IsReady", event=ready)["is_ready"] is True


def test_runtime_event_sets_the_flag_of_its_record(both: Both) -> None:
    event = Event()
    handle = both.calls.plugin.new_event(event)
    assert both.same("Event_IsReady", event=handle)["is_ready"] is False
    event.set()
    assert both.same("Event_IsReady", event=handle)["is_ready"] is True
    both.fast("Event_Destroy", event=handle)


def test_errors(both: Both) -> None:
    """Destroying no error is allowed."""
    for destroy in (both.fast, both.python):
        error = both.calls.plugin.new_error(ValueError("x"))
        assert (
            both.same("Error_GetCode", error=error)["code"] == abi.ERROR_CODES["INVALID_ARGUMENT"]
        )
        text = both.same("Error_Message", error=error)
        assert ctypes.string_at(text["message"], text["message_size"]) == b"ValueError: x"
        destroy("Error_Destroy", error=error)
        assert error not in both.calls.plugin.handles
        destroy("Error_Destroy", error=None)


def test_executable_getters(both: Both, neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    known = set(both.calls.plugin.handles._objects)
    shape = jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)
    compiled = jax.jit(lambda x: (x, x + 1, x.sum())).lower(shape).compile()
    new = [
        address
        for address, obj in both.calls.plugin.handles._objects.items()
        if address not in known and type(obj).__name__ == "LoadedState"
    ]
    handle = both.calls("LoadedExecutable_GetExecutable", loaded_executable=new[-1]).executable
    assert both.same("Executable_NumReplicas", executable=handle)["num_replicas"] == 1
    assert both.same("Executable_NumPartitions", executable=handle)["num_partitions"] == 8
    assert both.same("Executable_NumOutputs", executable=handle)["num_outputs"] == 3
    both.calls("Executable_Destroy", executable=handle)
    del compiled


PROGRAM = """
    import jax, numpy as np
    mesh = jax.make_mesh((8,), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), rows)
    step = jax.jit(lambda x: x - 0.5 * jax.grad(lambda x: (x * x).sum())(x), donate_argnums=0)
    for _ in range(3):
        y = step(x + 1)
    y.block_until_ready()
    print(np.asarray(y).sum(), y.is_ready(), y.sharding.spec, float(jax.jit(lambda x: x.sum())(x)))
    y.delete()
    print(y.is_deleted())
"""


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_program_with_and_without(switch: str, run_python: RunPython) -> None:
    done = run_python(PROGRAM, {"NEURONJAX_NATIVE_STUBS": switch})
    assert (done.returncode, done.stderr) == (0, "")
    result, deleted = done.stdout.splitlines()
    assert result == "0.0 True P('x', None) 496.0"
    assert deleted == "True"


PENDING = """
    import jax, jax.numpy as jnp
    x = jnp.ones(3)
    double = jax.jit(lambda x: 2 * x)
    def refuse(array):
        raise ValueError("refused")
    for attempt in range(5):
        try:
            [double(x), double(x), int(double(x), refuse(double(x)))]
        except ValueError as error:
            print(error)
        try:
            float(double(x), double(x))
        except TypeError as error:
            print("float", error.__class__.__name__)
    print(double(x))
"""


@pytest.mark.parametrize("switch", ["0", "1"])
def test_an_exception_on_its_way_survives_the_destruction_of_arrays(
    switch: str, run_python: RunPython
) -> None:
    """The arrays on the stack of a failing expression die while the exception is set."""
    done = run_python(PENDING, {"NEURONJAX_NATIVE_STUBS": switch})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["refused", "float TypeError"] * 5 + ["[2. 2. 2.]"]


@pytest.fixture(scope="module")
def own_table() -> Calls:
    return Calls(Table(Plugin(), True))


def test_the_code_of_a_table_answers(own_table: Calls) -> None:
    assert own_table.table.native is not None
    event, seen = own_table("Event_Create").event, []
    callback = abi.EVENT_CALLBACK(lambda error, user: seen.append((error, user)))
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert own_table("Event_IsReady", event=event).is_ready is False
    own_table("Event_OnReady", event=event, callback=address, user_arg=5)
    own_table("Event_Set", event=event)
    assert own_table("Event_IsReady", event=event).is_ready is True
    own_table("Event_OnReady", event=event, callback=address, user_arg=6)
    assert seen == [(None, 5), (None, 6)]
    own_table("Event_Destroy", event=event)
    nothing = ctypes.c_uint64(0)
    with pytest.raises(CallError, match="does not exist or was destroyed"):
        own_table("Event_Await", event=ctypes.addressof(nothing))


def test_at_the_end_threads_leave_and_none_comes_in() -> None:
    """``close`` returns when those inside have returned; later ones are refused, the main thread
    is not."""
    inside, leave, order = threading.Event(), threading.Event(), []

    def wait(plugin: Plugin, args: Any) -> None:
        inside.set()
        leave.wait(20)
        order.append("left")

    calls = Calls(
        Table(Plugin(), True, implementations() | {"Event_Await": wait, BUFFER_DESTROY_LAST: wait})
    )
    event = calls("Event_Create").event
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(calls, "Event_Await", event=event)
        assert inside.wait(20)
        threading.Timer(0.05, leave.set).start()
        calls.table.close()
        order.append("closed")
        waiting.result(20)
        assert order == ["left", "closed"]
        refused = pool.submit(calls, "Event_Create")
        with pytest.raises(CallError, match="failed"):
            refused.result(20)
        pool.submit(calls, "Event_Destroy", event=event).result(20)
    assert event in calls.plugin.handles
    calls("Event_Destroy", event=event)
    assert event not in calls.plugin.handles


def refused(table: int) -> native.Code:
    raise RuntimeError("executable pages are refused")


def test_without_machine_code_ctypes_answers(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls(Table(Plugin(), True, compiler=refused))
    assert calls.table.native is None
    assert "ctypes answers alone" in caplog.text
    assert "executable pages are refused" in caplog.text
    event = calls("Event_Create").event
    calls("Event_Set", event=event)
    calls("Event_Await", event=event)
    calls.table.close()
