"""Executor ``none``: results have types and no values, and take no memory of this machine."""

from __future__ import annotations

from tests.conftest import RunPython

NONE = {"NEURONJAX_EXECUTOR": "none", "NEURON_LOGICAL_NC_CONFIG": "2", "XLA_FLAGS": None}


def test_results_are_zeros_of_the_right_type(run_python: RunPython) -> None:
    code = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.experimental import io_callback
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        def f(x):
            io_callback(lambda y: print("executed"), None, x)
            small = tuple(x.astype(t) for t in (bool, jnp.int4, jnp.float8_e4m3, jnp.bfloat16))
            return x + 1, small

        x = jnp.ones((3, 5)) + 1
        y, small = jax.jit(f)(x)
        print(y.shape, y.dtype, np.unique(y), [str(s.dtype) for s in small])
        print([np.unique(np.asarray(s, np.float32)).tolist() for s in small])

        mesh = Mesh(np.array(jax.devices()), ("core",))
        split = NamedSharding(mesh, PartitionSpec("core"))
        z = jax.jit(lambda x: x * 2, in_shardings=split, donate_argnums=0)(jnp.ones(8))
        print(z.sharding == split, z.sum(), [s.data.shape for s in z.addressable_shards])
        z = jax.device_put(z, jax.devices()[1])
        print(z.sum(), jax.jit(lambda: None)())
        print(jax.jit(lambda key: jax.random.split(key))(jax.random.key(7)).shape)
    """
    done = run_python(code, NONE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(3, 5) float32 [0.] ['bool', 'int4', 'float8_e4m3', 'bfloat16']",
        "[[0.0], [0.0], [0.0], [0.0]]",
        "True 0.0 [(2,), (2,), (2,), (2,)]",
        "0.0 None",
        "(2,)",
    ]


def test_large_results_take_no_memory_of_the_host(run_python: RunPython) -> None:
    code = """
        import re
        import jax, jax.numpy as jnp

        def used():
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        x = jax.jit(lambda: jnp.zeros((1 << 30,)))()
        before = used()
        for _ in range(3):
            x = step(x)
        x.block_until_ready()
        print(x.nbytes >> 30, jax.devices()[0].memory_stats()["bytes_in_use"] >> 30)
        print((used() - before) >> 10)
        try:
            jax.jit(lambda x: jnp.concatenate([x] * 8))(x)
        except jax.errors.JaxRuntimeError as error:
            print(str(error).splitlines()[0])
    """
    done = run_python(code, NONE)
    assert done.returncode == 0, done.stderr
    sizes, grown, refused = done.stdout.splitlines()
    assert sizes == "4 4"
    assert int(grown) < 100
    assert refused.startswith("RESOURCE_EXHAUSTED: Failed to allocate 32.000GB")


def test_programs_cannot_be_stored(run_python: RunPython) -> None:
    code = """
        import jax, jax.numpy as jnp
        from jax.experimental import serialize_executable

        compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile()
        try:
            serialize_executable.serialize(compiled)
        except jax.errors.JaxRuntimeError as error:
            print(error)
    """
    done = run_python(code, NONE)
    assert done.returncode == 0, done.stderr
    assert "have no code to store" in done.stdout
