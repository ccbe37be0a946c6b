"""What only the emulated platform offers: a profile of the device's time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

import neuronjax
from launch.errors import OutputError
from neuronjax.errors import NeuronError

PLATFORM = "neuron"


@contextmanager
def profile(folder: Path) -> Iterator[None]:
    """Records what runs meanwhile: `neuronjax.profile` where that platform is in use, and
    `jax.profiler.trace` elsewhere.

    Raises OutputError if the profile cannot be made.
    """
    is_emulated = jax.default_backend() == PLATFORM
    try:
        with neuronjax.profile(folder) if is_emulated else jax.profiler.trace(folder):
            yield
    except (NeuronError, OSError) as error:
        raise OutputError(f"no profile in {folder}: {error}") from error
