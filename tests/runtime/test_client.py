"""Values and programs on a machine, without JAX in between."""

from __future__ import annotations

import numpy as np
import pytest

from neuronjax.errors import (
    ArgumentMismatchError,
    CompileError,
    DeletedBufferError,
    DeviceMemoryError,
    HostMemoryError,
    SerializationError,
)
from neuronjax.runtime import executable, memory
from neuronjax.runtime.client import Client
from neuronjax.runtime.value import ShardedValue
from tests.conftest import RunPython
from tests.runtime.conftest import Load, compile_options

DOUBLE = (
    "%a: tensor<4xf32>",
    "tensor<4xf32>",
    "%0 = stablehlo.add %a, %a : tensor<4xf32> return %0 : tensor<4xf32>",
)
DONATING = ("%a: tensor<4xf32> {jax.buffer_donor = true}", *DOUBLE[1:])
FOUR = np.arange(4, dtype=np.float32)


def in_use(client: Client) -> list[int]:
    return [client.ledger.stats(core).bytes_in_use for core in range(len(client.devices))]


def whole(client: Client, cores: range) -> ShardedValue:
    """A value with a shard of its own on each core, as a program makes it."""
    shards = [(client.put(FOUR + core, client.devices[core], "device"), 0) for core in cores]
    gathered = client.gather(shards, client.host.placement(cores))
    spec = client.spec(gathered.spec.tensor, gathered.spec.placement, "device")
    return ShardedValue(gathered.array, spec, client.ledger)


def test_put_copy_and_release(client: Client) -> None:
    before = in_use(client)
    value = client.put(FOUR, client.devices[1], "device")
    copy = client.copy(value, 0, client.devices[6], "device")
    parked = client.copy(copy, 0, client.devices[6], "pinned_host")
    charged = [after - earlier for after, earlier in zip(in_use(client), before, strict=True)]
    assert charged == [0, 16, 0, 0, 0, 0, 16, 0]
    value.release()
    value.release()
    np.testing.assert_array_equal(copy.numpy(0), FOUR)
    copy.release()
    np.testing.assert_array_equal(parked.numpy(0), FOUR)
    parked.release()
    assert in_use(client) == before


def test_shards_are_deleted_one_by_one(client: Client) -> None:
    value = whole(client, range(2, 5))
    client.ledger.allocate(range(2, 5), 16)
    held = in_use(client)
    assert [value.delete(1), value.delete(1)] == [False, False]
    assert [value.is_deleted(index) for index in range(3)] == [False, True, False]
    assert in_use(client)[3] == held[3] - 16
    np.testing.assert_array_equal(value.numpy(2), FOUR + 4)
    with pytest.raises(DeletedBufferError, match=r"shape \(4,\)"):
        value.shard(1)
    assert [value.delete(0), value.delete(2)] == [False, True]
    assert value.array is None
    assert [held[core] - in_use(client)[core] for core in range(2, 5)] == [16] * 3


def test_release_frees_only_the_shards_that_are_left(client: Client) -> None:
    value = whole(client, range(2))
    client.ledger.allocate(range(2), 16)
    held = in_use(client)
    value.delete(0)
    value.release()
    assert [held[core] - in_use(client)[core] for core in range(2)] == [16, 16]
    with pytest.raises(DeletedBufferError):
        value.shard(1)


def test_host_refusal_charges_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = in_use(client)
    monkeypatch.setattr(memory, "host_available_bytes", lambda: 0)
    large = np.broadcast_to(np.float32(0), (memory.HOST_CHECK_BYTES // 4,))
    for kind in ("device", "pinned_host"):
        with pytest.raises(HostMemoryError):
            client.put(large, client.devices[0], kind)
    assert in_use(client) == before


def test_device_refusal_charges_nothing(client: Client) -> None:
    before = in_use(client)
    limit = client.ledger.stats(0).bytes_limit
    large = np.broadcast_to(np.int8(0), (limit - before[0] + 1,))
    with pytest.raises(DeviceMemoryError, match="ND 0:NC 0"):
        client.put(large, client.devices[0], "device")
    assert in_use(client) == before


@pytest.mark.parametrize("kept", [False, True])
def test_donation(kept: bool, client: Client, load: Load) -> None:
    program = load(*DONATING)
    before = in_use(client)[0]
    value = client.put(FOUR, client.devices[0], "device")
    (result,), _ = program.execute([value], frozenset({0} if kept else {}))
    assert value.is_deleted(0) is not kept
    assert in_use(client)[0] - before == (32 if kept else 16)
    np.testing.assert_array_equal(result.numpy(0), 2 * FOUR)
    if kept:
        np.testing.assert_array_equal(value.numpy(0), FOUR)
        value.release()
    else:
        with pytest.raises(DeletedBufferError, match="argument 0 of program 'step'"):
            program.execute([value], frozenset())
    result.release()
    assert in_use(client)[0] == before
    program.unload()


def test_wrong_number_of_arguments(client: Client, load: Load) -> None:
    with pytest.raises(ArgumentMismatchError, match="'step' takes 1 arguments, but got 2"):
        load(*DOUBLE).execute([whole(client, range(1))] * 2, frozenset())


def test_device_that_does_not_exist(load: Load) -> None:
    with pytest.raises(CompileError, match=r"device 8, but there are 8 devices \(0-7\)"):
        load(*DOUBLE, first=8)


def test_replicas_have_numbers(client: Client, load: Load) -> None:
    body = "%0 = stablehlo.replica_id : tensor<ui32> return %0 : tensor<ui32>"
    program = load("", "tensor<ui32>", body, replicas=4, first=3)
    (result,), _ = program.execute([], frozenset())
    assert [int(result.numpy(index)) for index in range(4)] == [0, 1, 2, 3]
    assert program.placement.ids == (3, 4, 5, 6)


@pytest.fixture
def serialized(load: Load) -> bytes:
    program = load(*DOUBLE, replicas=2, first=1)
    options = compile_options(2, 1).SerializeAsString()
    return executable.serialize(program.program, program.host, options)


def test_serialized_program_runs_again(client: Client, serialized: bytes) -> None:
    program = client.load(serialized, None)
    assert program.placement.ids == (1, 2)
    assert program.program.signature.name == "step"
    (result,), _ = program.execute([whole(client, range(1, 3))], frozenset())
    for index, core in enumerate((1, 2)):
        np.testing.assert_array_equal(result.numpy(index), 2 * (FOUR + core))


def test_serialized_program_on_other_cores(client: Client, serialized: bytes) -> None:
    program = client.load(serialized, compile_options(2, 6))
    (result,), _ = program.execute([whole(client, range(6, 8))], frozenset())
    for index, core in enumerate((6, 7)):
        np.testing.assert_array_equal(result.numpy(index), 2 * (FOUR + core))


def test_cut_bytes_are_refused_wherever_they_are_cut(client: Client, serialized: bytes) -> None:
    cuts = {*range(200), *range(200, len(serialized), 97), len(serialized) - 1}
    for cut in sorted(cuts):
        with pytest.raises(SerializationError, match="Compile the program again"):
            executable.deserialize(serialized[:cut])
    with pytest.raises(SerializationError):
        client.load(serialized[: len(serialized) // 2], None)


def test_damaged_bytes_are_refused_wherever_the_damage_is(serialized: bytes) -> None:
    """XLA ends the process when it reads a damaged proto: nothing damaged may reach it."""
    for position in (*range(100), *range(100, len(serialized), 97)):
        damaged = bytearray(serialized)
        damaged[position] ^= 0x10
        with pytest.raises(SerializationError, match="not a serialized neuron executable"):
            executable.deserialize(bytes(damaged))


def test_bytes_of_another_version_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(*DOUBLE)
    monkeypatch.setattr(executable, "_FORMAT", 99)
    data = executable.serialize(program.program, program.host, b"")
    monkeypatch.undo()
    with pytest.raises(SerializationError, match="their format is 99, not"):
        executable.deserialize(data)


ACROSS_CORES = """
import time
import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

came = []

def callback(core, value):
    {body}
    return np.asarray(value)

def total(value):
    kind = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return jax.lax.psum({call}(callback, kind, jax.lax.axis_index("x"), value{how}), "x")

mesh = jax.sharding.Mesh(jax.devices()[:4], ("x",))
run = jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
step = jax.jit(run)
for _ in range(2):
    try:
        print(step(np.arange(4.0, dtype=np.float32)))
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[-1])
"""
"""Two runs with a host callback on each of four cores, which then meet."""


@pytest.mark.slow
def test_a_core_that_is_late_at_a_collective_is_waited_for(run_python: RunPython) -> None:
    """XLA's default ends the process after a minute."""
    body = "came.append(core); len(came) == 1 and time.sleep(65)"
    done = run_python(ACROSS_CORES.format(body=body, call="jax.pure_callback", how=""))
    assert done.stdout.splitlines() == ["[6. 6. 6. 6.]"] * 2, done.stderr


SAID, SUMS = "AssertionError: its own words", "[6. 6. 6. 6.]"
CALLS = {
    "pure": ("jax.pure_callback", "", [SAID, SUMS]),
    "unordered": ("io_callback", "", [SAID, SUMS]),
    "ordered": ("io_callback", ", ordered=True", [SAID, SAID]),
}
"""A call, how it is made, and what two runs print: JAX lets nothing come behind an ordered callback
that failed."""


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_in_a_callback_while_others_wait(run_python: RunPython, name: str) -> None:
    """The run in which it is raised fails with it, and other runs do not."""
    call, how, lines = CALLS[name]
    body = "came.append(core); assert core != 2 or came.count(2) > 1, 'its own words'"
    done = run_python(ACROSS_CORES.format(body=body, call=call, how=how))
    assert done.stdout.splitlines() == lines, done.stderr
