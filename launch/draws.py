"""Keys of random numbers that the device's compiler can draw."""

import jax


def key(seed: int) -> jax.Array:
    """A key of the generator rbg: Neuron's compiler does not completely support Threefry.

    What is drawn depends on the batch and the mesh, unlike with Threefry.
    """
    return jax.random.key(seed, impl="rbg")
