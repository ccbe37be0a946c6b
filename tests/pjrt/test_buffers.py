"""Arrays on the way to the machine, between its memories, and back."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from neuronjax.hlo.module import ELEMENT_TYPES

NAMES = sorted(dtype.name for dtype in ELEMENT_TYPES.values())


def sample(name: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    """Every kind of bit pattern that the type has, NaN among them."""
    dtype = np.dtype(name) if name in np.sctypeDict else np.dtype(getattr(ml_dtypes, name))
    count = int(np.prod(shape))
    numbers = np.random.default_rng(1).integers(0, 256, count * dtype.itemsize, np.uint8)
    if dtype == np.bool_:
        numbers &= 1
    bits = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}.get(dtype.name)
    if bits:
        numbers = np.arange(count, dtype=np.uint8) % (1 << bits)
        if dtype.name.startswith("int"):
            return (numbers.astype(np.int8) - (1 << bits - 1)).astype(dtype).reshape(shape)
    return numbers.view(dtype).reshape(shape)


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.name in ("int2", "int4"):  # their sign is stored in all bits or in none
        found, expected = found.astype(np.int8), expected.astype(np.int8)
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.fixture
def x64() -> object:
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NAMES)
def test_dtype_round_trip(name: str, neuron_devices: list[jax.Device]) -> None:
    value = sample(name)
    array = jax.device_put(value, neuron_devices[1])
    assert array.devices() == {neuron_devices[1]}
    same_bits(np.asarray(array), value)
    same_bits(np.asarray(jax.device_put(array, neuron_devices[6])), value)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NAMES)
def test_dtype_through_a_program(name: str, neuron_devices: list[jax.Device]) -> None:
    value = sample(name)
    moved = jax.jit(lambda x: (x.T, x[1:, ::2]))(jax.device_put(value, neuron_devices[0]))
    same_bits(np.asarray(moved[0]), value.T)
    same_bits(np.asarray(moved[1]), value[1:, ::2])


BASE = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
VIEWS: dict[str, np.ndarray] = {
    "contiguous": BASE,
    "transposed": BASE.T,
    "permuted": BASE.transpose(1, 2, 0),
    "strided": BASE[::2, 1::3, ::2],
    "reversed": BASE[::-1],
    "reversed and strided": BASE[::-2, :, ::-3],
    "broadcast": np.broadcast_to(BASE[:1, :, :1], (4, 5, 6)),
    "broadcast scalar": np.broadcast_to(np.float32(7), (3, 2)),
    "one element": BASE[1:2, 2:3, 3:4],
    "empty": BASE[:, 2:2],
    "empty of rank 1": np.zeros(0, np.float32),
    "rank 0": np.array(5, np.float32),
    "fortran": np.asfortranarray(BASE),
    "offset": np.arange(13, dtype=np.int8)[5:],
    "unaligned": np.frombuffer(b"x" + BASE.tobytes(), np.float32, 120, 1).reshape(4, 30),
    "strided bools": (BASE > 50)[:, ::2],
    "strided int4": sample("int4", (6, 8))[::-2, 1::3],
    "strided bfloat16": BASE.astype(ml_dtypes.bfloat16)[:, ::-1],
    "rank 12": np.arange(4096).astype(np.int32).reshape((2,) * 12).T,
}


@pytest.mark.parametrize("name", VIEWS)
def test_memory_order_of_host_arrays(name: str, neuron_devices: list[jax.Device]) -> None:
    view = VIEWS[name]
    same_bits(np.asarray(jax.device_put(view, neuron_devices[0])), view)


def test_host_array_may_change_after_the_transfer(neuron_devices: list[jax.Device]) -> None:
    value = np.arange(1000, dtype=np.float32)
    array = jax.device_put(value, neuron_devices[0])
    array.block_until_ready()
    expected = value.copy()
    value[:] = -1
    np.testing.assert_array_equal(array, expected)


def place(device: jax.Device, kind: str) -> SingleDeviceSharding:
    return SingleDeviceSharding(device, memory_kind=kind)


KINDS = ("device", "pinned_host", "unpinned_host")


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("devices", [(2, 2), (1, 6)], ids=str)
def test_copies(
    devices: tuple[int, int], source: str, target: str, neuron_devices: list[jax.Device]
) -> None:
    first = jax.device_put(BASE, place(neuron_devices[devices[0]], source))
    there = place(neuron_devices[devices[1]], target)
    second = jax.device_put(first, there, may_alias=False)
    assert second.sharding.memory_kind == target
    assert second.devices() == {neuron_devices[devices[1]]}
    first.delete()
    np.testing.assert_array_equal(second, BASE)


def test_copies_between_platforms(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    there = jax.device_put(jax.device_put(BASE, cpu_devices[1]), neuron_devices[3])
    back = jax.device_put(there, cpu_devices[0])
    assert (there.devices(), back.devices()) == ({neuron_devices[3]}, {cpu_devices[0]})
    np.testing.assert_array_equal(back, BASE)


def test_resharding(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), devices=neuron_devices)
    value = np.arange(64, dtype=np.int32).reshape(8, 8)
    array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
    for spec in (P("y", "x"), P(None, ("x", "y")), P(), P(("y", "x"))):
        array = jax.device_put(array, NamedSharding(mesh, spec))
        assert array.sharding.spec == spec
        np.testing.assert_array_equal(array, value)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, value[shard.index])


def test_array_from_single_shards(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    value = np.arange(16, dtype=np.float32)
    sharding = NamedSharding(mesh, P("x"))
    array = jax.make_array_from_callback((16,), sharding, lambda index: value[index])
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(array), value + 1)
    parts = [jax.device_put(value[2 * i : 2 * i + 2], d) for i, d in enumerate(neuron_devices)]
    joined = jax.make_array_from_single_device_arrays((16,), sharding, parts)
    for _ in range(2):
        np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(joined), value * 2)
    double = jax.jit(lambda x: x * 2)
    double(joined)
    parts[3].delete()
    with pytest.raises(ValueError, match="deleted"):
        double(joined)


def in_use(device: jax.Device) -> int:
    return device.memory_stats()["bytes_in_use"]


def test_donation_reuses_memory(neuron_devices: list[jax.Device]) -> None:
    device = neuron_devices[4]
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jax.device_put(np.zeros(1 << 16, np.float32), device)
    before = in_use(device)
    y = add(x)
    assert x.is_deleted()
    assert in_use(device) == before
    np.testing.assert_array_equal(y, 1)
    with pytest.raises((ValueError, RuntimeError), match=r"argument 0 .* donated|been deleted"):
        add(x)  # jax sees it before the platform does, from 0.12 on
    with pytest.raises(RuntimeError, match=r"deleted|donated"):
        np.asarray(x)


DONATIONS: dict[str, Callable[[jax.Array], object]] = {
    "same": lambda x: x + 1,
    "transposed": lambda x: x.T,
    "as integers": lambda x: x.astype(jnp.int32),
    "as shorter numbers": lambda x: x.astype(jnp.bfloat16),
    "flat": lambda x: x.reshape(16),
    "a larger product": lambda x: x @ x.T,
    "a sum": lambda x: x.sum(),
    "a copy for each core": lambda x: (x + 1).reshape(1, 16),
    "two results": lambda x: (x + 1, x - 1),
    "nothing": lambda x: jnp.zeros(()),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", DONATIONS)
@pytest.mark.parametrize("count", [1, 2])
def test_donations_take_the_arguments_that_the_cpu_platform_takes(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device], name: str, count: int
) -> None:
    deleted = []
    for devices in (neuron_devices, cpu_devices):
        auto = (AxisType.Auto,)
        mesh = jax.make_mesh((count,), ("x",), axis_types=auto, devices=devices[:count])
        x = jax.device_put(np.ones((8, 2), np.float32), NamedSharding(mesh, P("x")))
        jax.block_until_ready(jax.jit(DONATIONS[name], donate_argnums=0)(x))
        deleted.append(x.is_deleted())
    assert deleted[0] == deleted[1]


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("count", [1, 2])
def test_of_two_donations_the_one_that_is_left_keeps_its_values(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device], count: int
) -> None:
    deleted = []
    for devices in (neuron_devices, cpu_devices):
        auto = (AxisType.Auto,)
        mesh = jax.make_mesh((count,), ("x",), axis_types=auto, devices=devices[:count])
        values = [np.arange(16).reshape(8, 2).astype(dtype) for dtype in (np.int32, np.float32)]
        given = [jax.device_put(each, NamedSharding(mesh, P("x"))) for each in values]
        total = jax.jit(lambda a, b: a + b, donate_argnums=(0, 1))(*given)
        np.testing.assert_array_equal(total, values[0] * 2)
        deleted.append([each.is_deleted() for each in given])
        for each, value in zip(given, values, strict=True):
            if not each.is_deleted():
                np.testing.assert_array_equal(each, value)
    assert deleted[0] == deleted[1]
    assert sorted(deleted[0]) == [False, True]


def test_an_argument_given_twice_is_refused(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(np.ones(4, np.float32), neuron_devices[0])
    message = re.escape("for this bug: `f(donate(a), a)`")
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.jit(lambda x, y: (x + y, y), donate_argnums=0)(x, x)
    np.testing.assert_array_equal(x, 1)


def test_sharded_donation(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    x = jax.device_put(np.zeros((8, 1024), np.float32), NamedSharding(mesh, P("x")))
    before = [in_use(device) for device in neuron_devices]
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    y = step(x)
    assert x.is_deleted()
    for _ in range(3):
        y = step(y)
    assert [in_use(device) for device in neuron_devices] == before
    np.testing.assert_array_equal(y, 4)


def test_deletion(neuron_devices: list[jax.Device]) -> None:
    device = neuron_devices[5]
    before = in_use(device)
    x = jax.device_put(np.zeros(1 << 12, np.float32), device)
    x.delete()
    assert x.is_deleted()
    assert in_use(device) == before
    with pytest.raises(RuntimeError, match="deleted"):
        x.block_until_ready()
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1


@pytest.fixture
def pair(neuron_devices: list[jax.Device]) -> NamedSharding:
    """XLA runs programs with callbacks on one device in the caller's thread, on several not."""
    return NamedSharding(jax.make_mesh((2,), ("x",), devices=neuron_devices[:2]), P("x"))


def hold(sharding: NamedSharding) -> tuple[Callable[[jax.Array], jax.Array], threading.Event]:
    """A program that ends when the event is set; it adds one."""
    go = threading.Event()

    def wait(value: np.ndarray) -> np.ndarray:
        assert go.wait(30)
        return value + np.float32(1)

    def add(x: jax.Array) -> jax.Array:
        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    mapped = jax.shard_map(add, mesh=sharding.mesh, in_specs=P("x"), out_specs=P("x"))
    return jax.jit(mapped), go


def test_readiness_is_true(pair: NamedSharding) -> None:
    program, go = hold(pair)
    x = jax.device_put(np.zeros(4, np.float32), pair)
    x.block_until_ready()
    y = program(x)
    z = jax.jit(lambda y: y + 1)(y)
    assert not y.is_ready()
    assert not z.is_ready()
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(z.block_until_ready().is_ready()))
    waiter.start()
    waiter.join(0.1)
    assert waiter.is_alive()
    go.set()
    waiter.join(30)
    assert waited == [True]
    assert y.block_until_ready().is_ready()  # a thread of its own tells JAX that y is
    np.testing.assert_array_equal(z, 2)


def test_deleting_what_is_being_computed(pair: NamedSharding) -> None:
    program, go = hold(pair)
    x = jax.device_put(np.zeros(4, np.float32), pair)
    y = program(x)
    z = y + 1
    x.delete()
    y.delete()
    go.set()
    np.testing.assert_array_equal(z, 2)


def test_copies_of_what_is_being_computed(
    pair: NamedSharding, neuron_devices: list[jax.Device]
) -> None:
    program, go = hold(pair)
    y = program(jax.device_put(np.zeros(4, np.float32), pair))
    y.copy_to_host_async()
    elsewhere = jax.device_put(y.addressable_shards[0].data, neuron_devices[5])
    assert not y.is_ready()
    go.set()
    np.testing.assert_array_equal(y, 1)
    np.testing.assert_array_equal(elsewhere, 1)


def test_unsafe_buffer_pointer_leads_to_the_values(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(np.arange(6, dtype=np.int32), neuron_devices[0])
    numbers = (ctypes.c_int32 * 6).from_address(x.unsafe_buffer_pointer())
    assert list(numbers) == list(range(6))
    assert x.on_device_size_in_bytes() == 24


def test_host_offload_in_a_program(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), devices=neuron_devices)
    on_device = NamedSharding(mesh, P("x"))
    on_host = on_device.with_memory_kind("pinned_host")

    def step(weights: jax.Array, moments: jax.Array) -> tuple[jax.Array, jax.Array]:
        here = jax.device_put(moments, on_device)
        here = 0.5 * here + weights
        return weights - here, jax.device_put(here, on_host)

    weights = jax.device_put(np.full((8, 4), 2, np.float32), on_device)
    moments = jax.device_put(np.full((8, 4), 4, np.float32), on_host)
    before = in_use(neuron_devices[3])
    run = jax.jit(step, out_shardings=(on_device, on_host))
    new_weights, new_moments = run(weights, moments)
    assert new_weights.sharding.memory_kind == "device"
    assert new_moments.sharding.memory_kind == "pinned_host"
    assert in_use(neuron_devices[3]) == before + 16
    np.testing.assert_array_equal(new_weights, -2)
    np.testing.assert_array_equal(new_moments, 4)
    # The result is an argument of the same kind again.
    np.testing.assert_array_equal(run(new_weights, new_moments)[1], 0)


def test_layouts_are_row_major(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(BASE, neuron_devices[0])
    assert x.format.layout.major_to_minor == (0, 1, 2)
    compiled = jax.jit(lambda x: (x.T, x.sum())).lower(x).compile()
    layouts = [entry.layout.major_to_minor for entry in compiled.output_formats]
    assert layouts == [(0, 1, 2), ()]


def test_dlpack_is_not_claimed(neuron_devices: list[jax.Device]) -> None:
    with pytest.raises(Exception, match=r"(?i)dlpack|device|unimplemented"):
        np.from_dlpack(jnp.ones(3))
