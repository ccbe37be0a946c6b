"""A private client of XLA:CPU, from making it to what its executables return."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from neuronjax.host.client import HostClient
from neuronjax.jaxlib_api import compile_options, cpu_client, mlir, partitioner_dump, xla_errors
from neuronjax.jaxlib_api.hlo import terse_text
from neuronjax.jaxlib_api.mlir import ir
from tests.jaxlib_api.test_hlo import SUM, bytecode

CUSTOM_CALL = """
func.func public @main(%x: tensor<f32>) -> tensor<f32> {{
  %y = stablehlo.custom_call @nobody_knows(%x) {{api_version = {version} : i32}}
    : (tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}}
"""
SHARDED = """
module @sharded {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"})
      -> (tensor<f32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.reduce(%x init: %0) applies stablehlo.add across dimensions = [0]
      : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %y : tensor<f32>
  }
}
"""


@pytest.fixture(scope="module")
def client() -> cpu_client.Client:
    return cpu_client.create(4)


def replicas(count: int) -> Any:
    options = compile_options.new()
    compile_options.assign(options, np.arange(count).reshape(count, 1))
    return options


def over(devices: list[Any]) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices, object), ("core",)), PartitionSpec())


def test_the_client_is_apart_from_jax(client: cpu_client.Client) -> None:
    assert len(client.devices()) == 4
    assert not set(client.devices()) & set(jax.devices("cpu"))


def test_a_client_that_runs_has_threads_for_its_collectives() -> None:
    tasks = Path("/proc/self/task")
    counts = []
    for runs in (False, True):
        before = len(list(tasks.iterdir()))
        client = HostClient(16, runs=runs)
        counts.append(len(list(tasks.iterdir())) - before)
        assert len(client) == 16
    assert counts[1] - counts[0] >= 3 * 16
    assert "PJRT_NPROC" not in os.environ


def test_arrays_of_shards_that_differ(client: cpu_client.Client) -> None:
    """Put, assembled, run over replicas, taken apart: no step looks at a global value."""
    devices = client.devices()
    parts = [
        cpu_client.put(np.full(8, float(i), np.float32), SingleDeviceSharding(d), [d])
        for i, d in enumerate(devices)
    ]
    of = cpu_client.aval((8,), np.dtype(np.float32))
    array = cpu_client.assemble(of, over(devices), parts)
    executable = client.compile_and_load(
        bytecode(SUM), cpu_client.device_list(devices), replicas(4)
    )
    handler = cpu_client.result_handler(of, over(devices))
    ran = executable.execute_sharded([array], with_tokens=True)
    ran.consume_token().block_until_ready()
    (total,) = ran.consume_with_handlers([handler])
    for shard in cpu_client.shards(total):
        np.testing.assert_array_equal(shard, np.full(8, 6, np.float32))
    for i, shard in enumerate(cpu_client.shards(array)):
        np.testing.assert_array_equal(shard, np.full(8, i, np.float32))


def test_what_executables_know(client: cpu_client.Client) -> None:
    devices = cpu_client.device_list(client.devices())
    executable = client.compile_and_load(bytecode(SUM), devices, replicas(4))
    stats = executable.get_compiled_memory_stats()
    assert stats.temp_size_in_bytes >= 0
    assert stats.alias_size_in_bytes == 0
    assert executable.size_of_generated_code_in_bytes() >= 0
    (module,) = executable.hlo_modules()
    assert "all-reduce" in terse_text(module.as_serialized_hlo_module_proto())
    data = executable.serialize()
    loaded = client.deserialize_executable(data, devices, replicas(4))
    assert loaded.hlo_modules()[0].name == module.name


def test_host_callbacks_come_by_number(client: cpu_client.Client) -> None:
    def double(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda x: 2 * x, x, x)

    lowered = jax.jit(double).lower(jax.device_put(np.float32(3), jax.devices("cpu")[0]))
    device = client.devices()[0]
    with mlir.make_context():
        module = ir.Module.parse(mlir.bytecode(lowered.compiler_ir()))
        executable = client.compile_and_load(
            module,
            cpu_client.device_list([device]),
            replicas(1),
            [lambda *arrays: tuple(7 * np.asarray(array) for array in arrays)],
        )
    sharding = SingleDeviceSharding(device)
    argument = cpu_client.put(np.array(3, np.float32), sharding, [device])
    handler = cpu_client.result_handler(cpu_client.aval((), np.dtype(np.float32)), sharding)
    (result,) = executable.execute_sharded([argument]).consume_with_handlers([handler])
    assert float(result) == 21


@pytest.mark.parametrize("copied", [True, False])
def test_put_copies_unless_told_not_to(client: cpu_client.Client, copied: bool) -> None:
    device = client.devices()[0]
    room = np.zeros(4096 + cpu_client.ALIGNMENT, np.uint8)
    start = -room.ctypes.data % cpu_client.ALIGNMENT
    value = room[start : start + 4096].view(np.float32)
    array = cpu_client.put(value, SingleDeviceSharding(device), [device], copied=copied)
    assert (array.unsafe_buffer_pointer() == value.ctypes.data) == (not copied)


def test_copies_are_not_aliases(client: cpu_client.Client) -> None:
    devices = client.devices()[:2]
    array = cpu_client.put(np.arange(4096.0), SingleDeviceSharding(devices[0]), devices[:1])
    copy = cpu_client.copy(
        array, cpu_client.device_list(devices[:1]), SingleDeviceSharding(devices[0])
    )
    assert copy.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(copy, np.arange(4096.0))


@pytest.mark.parametrize("version", [1, 4], ids=["untyped", "typed"])
def test_the_error_of_an_unknown_custom_call(client: cpu_client.Client, version: int) -> None:
    devices = cpu_client.device_list(client.devices()[:1])
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        client.compile_and_load(bytecode(CUSTOM_CALL.format(version=version)), devices, replicas(1))
    assert xla_errors.unknown_custom_call(str(caught.value)) == "nobody_knows"


def test_the_partitioner_leaves_its_result(client: cpu_client.Client, tmp_path: Path) -> None:
    options = compile_options.new()
    compile_options.assign(options, np.arange(4).reshape(1, 4))
    options.executable_build_options.use_spmd_partitioning = True
    options.env_option_overrides = list(partitioner_dump.debug_options(str(tmp_path)).items())
    devices = cpu_client.device_list(client.devices())
    client.compile_and_load(bytecode(SHARDED), devices, options)
    (path,) = partitioner_dump.files(str(tmp_path))
    text = terse_text(partitioner_dump.hlo_module(path))
    assert "f32[2]" in text
    assert "all-reduce" in text
