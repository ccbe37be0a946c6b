"""A private XLA:CPU client, and the calls that move arrays onto its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from jax._src import array as jax_array
from jax._src import core as jax_core
from jax._src.lib import xla_client
from jaxlib import _jax

from neuronjax.jaxlib_api.versions import JAXLIB

ALIGNMENT = 64
"""Bytes; XLA copies host arrays that begin elsewhere."""


class Results(Protocol):
    """What one run of an executable returns; each part is taken once."""

    def consume_token(self) -> Any:
        """Ready, and waited for by ``block_until_ready``, when the run has ended."""

    def consume_with_handlers(self, handlers: Sequence[Callable[[Any], Any]]) -> list[Any]:
        """An array for each result, made by its ``result_handler``."""


class Executable(Protocol):
    """What is relied on of jaxlib's ``LoadedExecutable``."""

    def execute_sharded(self, arguments: Sequence[Any], with_tokens: bool = False) -> Results:
        """Enqueues a run over arrays with one shard for each device."""

    def get_compiled_memory_stats(self) -> Any:
        """Bytes per device, as ``temp_size_in_bytes`` and ``alias_size_in_bytes``."""

    def size_of_generated_code_in_bytes(self) -> int: ...

    def hlo_modules(self) -> list[Any]:
        """A list of one module, with ``as_serialized_hlo_module_proto``."""

    def serialize(self) -> bytes: ...


class Client(Protocol):
    """What is relied on of jaxlib's ``Client``.

    ``options`` are CompileOptions. Programs are bytecode, or a module if host callbacks are given,
    which the program numbers in this order.
    """

    def devices(self) -> list[Any]: ...

    def compile_and_load(
        self, program: Any, devices: Any, options: Any, callbacks: Sequence[Any] = ...
    ) -> Executable: ...

    def deserialize_executable(self, data: bytes, devices: Any, options: Any) -> Executable:
        """The inverse of ``Executable.serialize``."""


def create(num_devices: int) -> Client:
    """A client of its own, apart from JAX's ``cpu`` backend.

    Relies on ``_jax.get_tfrt_cpu_client``. Without it: see how
    ``jax._src.xla_bridge.make_cpu_client`` makes JAX's.
    """
    return _jax.get_tfrt_cpu_client(asynchronous=True, num_devices=num_devices)


def device_list(devices: Sequence[Any]) -> Any:
    """Devices as the compiler and copies take them. Relies on ``xla_client.DeviceList``."""
    return xla_client.DeviceList(tuple(devices))


@lru_cache(4096)
def aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """JAX's abstract value of an array. Relies on ``core.ShapedArray``, which takes a third of the
    time of a small copy to make."""
    return jax_core.ShapedArray(shape, dtype)


def put(value: np.ndarray, sharding: Any, devices: Sequence[Any], *, copied: bool = True) -> Any:
    """An array with the host array ``value`` on each of ``devices``.

    Without ``copied`` the array uses the memory of ``value``, which must begin at a multiple of
    ``ALIGNMENT`` and never change.

    Relies on ``_jax.batched_device_put``. Without it: ``jax.device_put`` for each device, and
    ``jax.make_array_from_single_device_arrays``.
    """
    semantics = _jax.HostBufferSemantics
    return _jax.batched_device_put(
        aval(value.shape, value.dtype),
        sharding,
        [value] * len(devices),
        list(devices),
        True,
        False,
        semantics.IMMUTABLE_ONLY_DURING_CALL if copied else semantics.ZERO_COPY,
        enable_x64=True,
    )


def copy(array: Any, devices: Any, sharding: Any) -> Any:
    """A copy of an array on a ``device_list``.

    Relies on ``_jax.batched_copy_array_to_devices_with_sharding``, as ``jax.device_put`` does with
    ``may_alias=False``.
    """
    (copied,) = _jax.batched_copy_array_to_devices_with_sharding(
        [array], [devices], [sharding], [_jax.ArrayCopySemantics.ALWAYS_COPY]
    )
    return copied


def assemble(of: Any, sharding: Any, shards: list[Any]) -> Any:
    """An array of single-device arrays; ``of`` is its ``aval``.

    Relies on ``array.ArrayImpl``. Without it: ``jax.make_array_from_single_device_arrays``, which
    checks more.
    """
    return jax_array.ArrayImpl(of, sharding, shards, True, True)


def shards(array: Any) -> list[Any]:
    """The single-device arrays of an array on several devices, in the order of its sharding.

    Relies on ``ArrayImpl._arrays``. Without it: ``array.addressable_shards``, which is slower.
    """
    return array._arrays


def result_handler(of: Any, sharding: Any) -> Callable[[Any], Any]:
    """Makes arrays of one result of a run; for ``consume_with_handlers``.

    Relies on ``_jax.array_result_handler``; until 0.10 it checked shapes unless told not to.
    """
    unchecked = (True,) if JAXLIB < (0, 11) else ()
    return _jax.array_result_handler(of, sharding, True, *unchecked)
