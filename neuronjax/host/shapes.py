"""The executor ``none``: programs are partitioned and checked, but not compiled further nor run.

Results are zeros of the right type, as those of the Neuron SDK are while it collects graphs. They
take no memory of this machine until somebody writes to them or copies them: the pages of a fresh
array of zeros are mapped when they are first touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.errors import HostMemoryError, SerializationError
from neuronjax.hlo import module as hlo
from neuronjax.hlo.module import TensorSpec
from neuronjax.host.client import HostClient, HostExecutable, Placement
from neuronjax.jaxlib_api import cpu_client


@dataclass(frozen=True)
class NoMemory:
    """Memory statistics of a program without code: nobody knows its temporaries."""

    alias_size_in_bytes: int = 0
    temp_size_in_bytes: int = 0


class ShapesExecutable(HostExecutable):
    """A per-core program of which only the types are used."""

    holds_values = False
    runs_on_host = False

    def __init__(
        self, placement: Placement, results: Sequence[TensorSpec], zeros: Callable[..., Any]
    ) -> None:
        self.placement = placement
        self._results = results
        self._zeros = zeros

    def execute(self, arguments: list[Any], with_token: bool = False) -> tuple[list[Any], Any]:
        """Zeros, at once; there is nothing that a token could wait for."""
        return [self._zeros(spec, self.placement) for spec in self._results], None

    def copied(self, array: Any, spec: TensorSpec) -> Any:
        return array

    def put(self, value: np.ndarray) -> Any:
        return None

    def memory(self) -> Any:
        return NoMemory()

    def code_bytes(self) -> int:
        return 0

    def serialize(self) -> bytes:
        raise SerializationError(
            "programs of NEURONJAX_EXECUTOR=none have no code to store; turn the compilation cache "
            "off (jax_enable_compilation_cache), or use the executor host."
        )


class ElsewhereExecutable(ShapesExecutable):
    """A per-core program that runs on the cores of other processes alone: here are its types."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement, (), lambda *_: None)

    def serialize(self) -> bytes:
        """Nothing: whoever loads it compiles what the program is on cores of its own."""
        return b""


class ShapesClient(HostClient):
    """A host client that computes nothing."""

    def __init__(self, num_devices: int) -> None:
        super().__init__(num_devices)
        self._zeros: dict[tuple[TensorSpec, Placement], Any] = {}

    def compile(
        self,
        module: bytes,
        placement: Placement,
        results: Sequence[TensorSpec],
        options: dict[str, Any],
        callbacks: Sequence[Callable[..., Any]],
    ) -> HostExecutable:
        return ShapesExecutable(placement, results, self._zero)

    def deserialize(
        self, data: bytes, placement: Placement, results: Sequence[TensorSpec]
    ) -> HostExecutable:
        return ShapesExecutable(placement, results, self._zero)

    def _zero(self, spec: TensorSpec, placement: Placement) -> Any:
        """The one array of zeros of this type, the same memory on every core."""
        key = (spec, placement)
        if key not in self._zeros:
            self._zeros[key] = cpu_client.put(
                _untouched(spec), placement.sharding, placement.devices, copied=False
            )
        return self._zeros[key]


def _untouched(spec: TensorSpec) -> np.ndarray:
    """Zeros whose pages are not mapped yet, at an address that XLA takes as it is."""
    dtype = np.dtype(np.bool_) if spec.dtype == hlo.TOKEN else spec.dtype
    nbytes = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
    try:
        room = np.zeros(nbytes + cpu_client.ALIGNMENT, np.uint8)
    except MemoryError:
        raise HostMemoryError(
            f"a result of shape {spec.shape} needs {nbytes / (1 << 30):.1f} GiB of this machine's "
            "address space, which it refuses although nothing is stored there; shard the result "
            "over more cores."
        ) from None
    start = -room.ctypes.data % cpu_client.ALIGNMENT
    return room[start : start + nbytes].view(dtype).reshape(spec.shape)
