"""Compiling ahead of time while the platform itself is in use."""

from tests.conftest import RunPython

PROGRAM = """
    import jax, jax.numpy as jnp
    from jax.experimental import topologies
    devices = jax.devices()  # a live client beside the topology
    topology = topologies.get_topology_desc(platform="neuron")
    mesh = topologies.make_mesh(topology, (len(devices),), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    shape = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=rows)
    compiled = jax.jit(lambda x: x.sum()).lower(shape).compile()
    print("all-reduce" in compiled.as_text())
"""


def test_no_deadlock(run_python: RunPython) -> None:
    done = run_python(PROGRAM, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]
