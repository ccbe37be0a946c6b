"""HLO modules, and the fields of their messages, against what jaxlib reads and writes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from neuronjax import protobuf
from neuronjax.jaxlib_api import hlo, mlir
from neuronjax.jaxlib_api.mlir import ir

SUM = """
module @total attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %y = "stablehlo.all_reduce"(%x) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,
      replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    return %y : tensor<8xf32>
  }
}
"""


def bytecode(text: str) -> bytes:
    with mlir.make_context():
        return mlir.bytecode(ir.Module.parse(text))


def test_stablehlo_to_hlo_and_back() -> None:
    serialized = hlo.computation(bytecode(SUM)).as_serialized_hlo_module_proto()
    with mlir.make_context():
        module = ir.Module.parse(hlo.to_stablehlo(serialized))
        assert "stablehlo.all_reduce" in str(module)
        assert str(module.operation.attributes["sym_name"]) == '"total"'


def test_groups_are_written_where_hlo_reads_them() -> None:
    """Of the named instruction, and no other one."""
    serialized = hlo.computation(bytecode(SUM)).as_serialized_hlo_module_proto()
    text = hlo.terse_text(serialized)
    (line,) = (line for line in text.splitlines() if " all-reduce(" in line)
    assert "metadata" not in text
    name = line.split("=")[0].replace("ROOT", "").strip().lstrip("%")
    changed = hlo.write_groups(serialized, {name: ((0, 2), (1, 3))}.get)
    assert "replica_groups={{0,2},{1,3}}" in hlo.terse_text(changed)
    assert hlo.write_groups(serialized, {}.get) == serialized


def test_parts_of_parameters(cpu_devices: list[jax.Device]) -> None:
    """The same as JAX's sharding says."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), (AxisType.Auto,) * 2, devices=cpu_devices)
    specs = [PartitionSpec("a", "b"), PartitionSpec(None, "a"), PartitionSpec()]
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    shape = (8, 16)
    texts = ("{devices=[4,2]<=[8]}", "{devices=[1,4,2]<=[8] last_tile_dim_replicate}")
    attribute = ", ".join(f'"{text}"' for text in (*texts, "{replicated}"))
    module = f"""
    module @m attributes {{mhlo.spmd_parameters_shardings = [{attribute}]}} {{
      func.func public @main(%a: tensor<2x8xf32>, %b: tensor<8x4xf32>, %c: tensor<8x16xf32>)
          -> tensor<f32> {{
        %0 = stablehlo.constant dense<0.0> : tensor<f32>
        return %0 : tensor<f32>
      }}
    }}"""
    parts = hlo.parameter_indices(bytecode(module), [shape] * 3, 8)
    value = np.arange(128).reshape(shape)
    for sharding, of_cores in zip(shardings, parts, strict=True):
        expected = sharding.devices_indices_map(shape)
        for device, index in zip(cpu_devices, of_cores, strict=True):
            np.testing.assert_array_equal(value[index], value[expected[device]])


def test_a_module_with_its_config() -> None:
    """Fields of HloModuleProtoWithConfig; ``compiled.as_text`` reads the whole on the platform."""
    data = hlo.module_with_config(bytecode(SUM), 4, 1, [None])
    fields = dict(protobuf.fields(data))
    assert isinstance(fields[1], bytes)
    assert "all-reduce" in hlo.terse_text(fields[1])
    assert isinstance(fields[2], bytes)
    config = dict(protobuf.fields(fields[2]))
    assert (config[4], config[5]) == (4, 1)
    assert config[1] == protobuf.first(fields[1], 4) != b""


def test_jax_reads_a_module_with_its_config(neuron_devices: list[jax.Device]) -> None:
    x = jax.device_put(jnp.ones((4, 8)), neuron_devices[0])
    compiled = jax.jit(lambda x: x @ x.T).lower(x).compile()
    assert "(f32[4,8]{1,0})->f32[4,4]{1,0}" in compiled.as_text()
