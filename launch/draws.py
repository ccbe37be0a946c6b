"""Random keys that the device's compiler supports."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax


def key(seed: int) -> jax.Array:
    """A key of the rbg generator: Neuron's compiler does not completely support Threefry.

    Unlike with Threefry, the numbers depend on the batch and the mesh.
    """
    return jax.random.key(seed, impl="rbg")


@contextmanager
def without_threefry_warning() -> Iterator[None]:
    """Allows Threefry for a model's initial weights: they are drawn only once, and a seed gives the
    same weights on every mesh."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\[JAX_THREEFRY\]")
        yield
