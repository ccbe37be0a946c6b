"""Compiled programs: what they tell about themselves, and how they travel."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax._src.lib import xla_client
from jax.experimental import mesh_utils, serialize_executable, topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neuronjax.errors import ConfigurationError
from tests.conftest import RunPython


@pytest.fixture(scope="module")
def mesh(neuron_devices: list[jax.Device]) -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), devices=neuron_devices)


def matmul(mesh: Mesh) -> jax.stages.Compiled:
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "y"))
    a = jax.ShapeDtypeStruct((16, 32), np.float32, sharding=rows)
    b = jax.ShapeDtypeStruct((32, 8), np.float32, sharding=columns)
    return jax.jit(lambda a, b: (a @ b, b.sum())).lower(a, b).compile()


def test_cost_analysis_is_per_core(mesh: Mesh) -> None:
    cost = matmul(mesh).cost_analysis()
    assert cost == {"flops": 2 * 4 * 32 * 4}  # a core multiplies (4, 32) by (32, 4)


def test_memory_analysis_is_per_core(mesh: Mesh) -> None:
    memory = matmul(mesh).memory_analysis()
    assert memory.argument_size_in_bytes == 4 * (4 * 32 + 32 * 4)
    assert memory.output_size_in_bytes == 4 * (4 * 4 + 1)
    assert memory.alias_size_in_bytes == 0
    assert memory.generated_code_size_in_bytes >= 0
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert memory.peak_memory_in_bytes >= total


def test_what_is_recomputed_takes_no_memory_meanwhile() -> None:
    """Of eight blocks in a row one has its intermediate values at a time, and their inputs stay."""
    blocks, deep = 8, 6

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(deep):
            x = jnp.sin(x @ w)
        return x

    def memory(block: Callable[[jax.Array, jax.Array], jax.Array]) -> float:
        """In values as large as what a block takes."""

        def loss(w: jax.Array, x: jax.Array) -> jax.Array:
            for _ in range(blocks):
                x = block(x, w)
            return jnp.sum(x)

        w, x = np.zeros((8, 8), np.float32), np.zeros((4096, 8), np.float32)
        compiled = jax.jit(jax.grad(loss)).lower(w, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes / x.nbytes

    assert memory(block) > blocks * deep
    assert memory(jax.checkpoint(block)) < blocks + 2 * deep + 2


def test_small_loops_are_recomputed() -> None:
    """XLA:CPU emits loops on a few bytes in another way, which knows no optimization barriers."""

    @jax.checkpoint
    def body(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x), jnp.sin(x)

    def loss(x: jax.Array) -> jax.Array:
        return lax.scan(body, x, None, length=3)[0]

    x = math.sin(math.sin(1.0))
    slope = math.cos(1.0) * math.cos(math.sin(1.0)) * math.cos(x)
    assert jax.jit(jax.grad(loss))(1.0) == pytest.approx(slope, rel=1e-6)


def test_donation_shows_in_memory_analysis(neuron_devices: list[jax.Device]) -> None:
    x = jnp.zeros(1024)
    compiled = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == 4096


def test_text_is_the_program_of_a_core(mesh: Mesh) -> None:
    text = matmul(mesh).as_text()
    assert "(f32[4,32]{1,0}, f32[32,4]{1,0})->(f32[4,4]{1,0}, f32[])" in text


def test_shardings_of_results(mesh: Mesh) -> None:
    shardings = matmul(mesh).output_shardings
    assert shardings[0].is_equivalent_to(NamedSharding(mesh, P("x", "y")), 2)
    assert shardings[1].is_fully_replicated


def test_serialized_executable_runs_again(mesh: Mesh) -> None:
    compiled = matmul(mesh)
    payload, in_tree, out_tree = serialize_executable.serialize(compiled)
    again = serialize_executable.deserialize_and_load(payload, in_tree, out_tree)
    generator = np.random.default_rng(0)
    a = generator.standard_normal((16, 32), dtype=np.float32)
    b = generator.standard_normal((32, 8), dtype=np.float32)
    a_there = jax.device_put(a, NamedSharding(mesh, P("x")))
    b_there = jax.device_put(b, NamedSharding(mesh, P(None, "y")))
    for ours, theirs in zip(again(a_there, b_there), compiled(a_there, b_there), strict=True):
        assert ours.sharding == theirs.sharding
        np.testing.assert_array_equal(ours, theirs)


def test_damaged_serialized_executable_is_an_error(mesh: Mesh) -> None:
    payload, in_tree, out_tree = serialize_executable.serialize(matmul(mesh))
    middle = payload.index(b"NEURONJX") + 500
    damaged = payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"DATA_LOSS.*Compile the program again"):
        serialize_executable.deserialize_and_load(damaged, in_tree, out_tree)


def test_exported_program(neuron_devices: list[jax.Device]) -> None:
    x = np.arange(6, dtype=np.float32)
    exported = export.export(jax.jit(lambda x: jnp.sin(x) * 2))(x)
    assert exported.platforms == ("neuron",)
    again = export.deserialize(exported.serialize())
    result = again.call(x)
    assert result.devices() == {neuron_devices[0]}
    np.testing.assert_array_equal(result, jax.jit(lambda x: jnp.sin(x) * 2)(x))


def test_program_exported_for_both_platforms(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    exported = export.export(jax.jit(jnp.tanh), platforms=("cpu", "neuron"))(np.ones(3, np.float32))
    again = export.deserialize(exported.serialize())
    places = (neuron_devices[0], cpu_devices[0])
    results = [again.call(jax.device_put(np.ones(3, np.float32), place)) for place in places]
    np.testing.assert_array_equal(*results)


def test_a_module_without_a_name_is_called_as_on_cpu(
    neuron_devices: list[jax.Device], cpu_devices: list[jax.Device]
) -> None:
    text = "func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }"
    ours, theirs = (
        device.client.compile_and_load(
            text,
            executable_devices=xla_client.DeviceList((device,)),
            compile_options=xla_client.CompileOptions(),
        )
        for device in (neuron_devices[0], cpu_devices[0])
    )
    assert ours.hlo_modules()[0].name == theirs.hlo_modules()[0].name


def test_persistent_cache_is_hit_by_another_process(run_python: RunPython, tmp_path: Path) -> None:
    code = """
        import jax, jax.numpy as jnp, numpy as np
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        mesh = jax.make_mesh((8,), ("x",))
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), rows)
        whole, split = jax.jit(lambda x: (jnp.tanh(x * x.sum(0)).sum(), x * 2))(x)
        print(float(whole) + float(np.asarray(split)[3, 4]))
        print(hits.count("/jax/compilation_cache/cache_hits"))
    """
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first = run_python(code, env)
    entries = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("-cache"))
    second = run_python(code, env)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    values, hits = zip(*(done.stdout.split() for done in (first, second)), strict=True)
    assert values[0] == values[1]
    assert hits[0] == "0"
    assert int(hits[1]) == len(entries) > 0
    after = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("-cache"))
    assert after == entries
    # Another machine must not take these programs.
    third = run_python(
        code, env | {"NEURONJAX_TARGET": "trn2.48xlarge", "NEURON_RT_NUM_CORES": "8"}
    )
    assert third.stdout.split() == [values[0], "0"]


@pytest.mark.parametrize(
    ("target", "options", "devices", "kind"),
    [
        ("trn2.48xlarge", {}, 128, "NC_v3"),
        ("trn2.48xlarge", {"lnc": 2}, 64, "NC_v3d"),
        ("trn1.2xlarge", {}, 2, "NC_v2"),
        ("trn1.2xlarge", {"lnc": None, "num_slices": None, "wrap": None}, 2, "NC_v2"),
        ("trn1.2xlarge", {"num_slices": 1}, 2, "NC_v2"),
        ("trn1.32xlarge", {"num_slices": 3}, 96, "NC_v2"),
        ("trn2-ultraserver", {"num_slices": 2, "lnc": 2}, 512, "NC_v3d"),
    ],
    ids=str,
)
def test_topology_of_a_machine_that_is_not_there(
    target: str, options: dict[str, int | None], devices: int, kind: str
) -> None:
    topology = topologies.get_topology_desc(target, "neuron", **options)
    assert len(topology.devices) == devices
    assert {device.device_kind for device in topology.devices} == {kind}
    assert topology.devices[0].platform == "neuron"


def test_slices_are_machines_over_efa() -> None:
    topology = topologies.get_topology_desc("trn1.2xlarge", "neuron", num_slices=3)
    places = [(d.slice_index, d.process_index, d.instance, d.core) for d in topology.devices]
    assert places == [
        (slice, slice, slice, 2 * slice + core) for slice in range(3) for core in (0, 1)
    ]
    devices = mesh_utils.create_hybrid_device_mesh((2, 1), (1, 3), topology.devices)
    assert [[device.id for device in row] for row in devices] == [[0, 2, 4], [1, 3, 5]]
    mesh = jax.sharding.Mesh(devices, ("model", "data"))
    x = jax.ShapeDtypeStruct((64, 96), np.float32, sharding=NamedSharding(mesh, P("model", "data")))
    compiled = jax.jit(lambda x: x @ x.T).lower(x).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 4 * 32 * 32


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("trn2.48xlrage", {}, "Did you mean trn2.48xlarge"),
        ("trn2.48xlarge", {"num_slice": 1}, "num_slice; the options are lnc, num_slices, target"),
        ("trn2.48xlarge", {"num_slices": 0}, "num_slices=0 is not a number of trn2.48xlarge"),
        ("trn2.48xlarge", {"num_slices": 1 << 40}, "a whole number from 1 to 512"),
        ("trn2.48xlarge", {"num_slices": "two"}, "num_slices='two'"),
        ("trn2.48xlarge", {"num_slices": True}, "num_slices=True"),
        ("trn2.48xlarge", {"lnc": 7}, "allowed: 1 or 2"),
        ("trn2.48xlarge", {"lnc": {}}, "topology option lnc={} is a dict"),
    ],
    ids=str,
)
def test_wrong_topologies_are_named(target: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises((jax.errors.JaxRuntimeError, ConfigurationError)) as error:
        topologies.get_topology_desc(target, "neuron", **options)
    assert says in str(error.value)


def test_compiling_ahead_for_a_machine_that_is_not_there() -> None:
    topology = topologies.get_topology_desc("trn2.48xlarge", "neuron", lnc=2)
    mesh = topologies.make_mesh(topology, (16, 4), ("x", "y"))
    x = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, P("x", "y")))
    compiled = jax.jit(lambda x: x @ x.T).lower(x).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 4 * 4 * 16
    assert compiled.cost_analysis()["flops"] > 0
    assert "(f32[4,16]{1,0})->" in compiled.as_text()


def test_unknown_topology_is_an_error() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"trn9.*trn2\.48xlarge"):
        topologies.get_topology_desc("trn9.metal", "neuron")


def test_arrays_can_be_pickled(neuron_devices: list[jax.Device]) -> None:
    value = np.arange(5, dtype=np.float32)
    array = jax.device_put(value, neuron_devices[0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), value)
