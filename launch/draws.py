"""Keys of random numbers that the device's compiler can draw."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax


def key(seed: int) -> jax.Array:
    """A key of the generator rbg: Neuron's compiler does not completely support Threefry.

    What is drawn depends on the batch and the mesh, unlike with Threefry.
    """
    return jax.random.key(seed, impl="rbg")


@contextmanager
def without_threefry_warning() -> Iterator[None]:
    """Lets Threefry draw a model's first weights: it does so once, and makes the same of a seed on
    every mesh."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\[JAX_THREEFRY\]")
        yield
