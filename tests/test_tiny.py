"""The smallest proof that everything from JAX to the machine is connected."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def test_a_program_runs_on_the_default_device(neuron_devices: list[jax.Device]) -> None:
    result = jax.jit(lambda x: x @ x + 1)(jnp.eye(3))
    assert result.devices() == {neuron_devices[0]}
    np.testing.assert_array_equal(result, np.eye(3, dtype=np.float32) + 1)


def test_a_program_runs_on_all_cores(neuron_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("core",), devices=neuron_devices)
    rows = NamedSharding(mesh, PartitionSpec("core"))
    x = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(8, 2), rows)
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: jnp.sum(x * x)))(x)
    assert float(loss) == 1240.0
    assert gradient.sharding.is_equivalent_to(rows, 2)
    np.testing.assert_array_equal(gradient, 2 * np.asarray(x))
