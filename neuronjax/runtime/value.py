"""Values in emulated memory: a value on one or several cores, with a shard on each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronjax.errors import DeletedBufferError
from neuronjax.hlo.layouts import Order
from neuronjax.hlo.module import TOKEN, TensorSpec
from neuronjax.host.client import Placement
from neuronjax.runtime.event import Event
from neuronjax.runtime.memory import HbmLedger

MOST_SPECS = 4096
"""Types of values that a client remembers: a process that puts arrays of ever new shapes must not
grow by them."""

_PACKED = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})


@dataclass(frozen=True, eq=False)
class ValueSpec:
    """Type, cores and memory kind of a value; values that are alike share an object."""

    tensor: TensorSpec
    """The type of each shard."""
    placement: Placement
    memory_kind: str
    shard_bytes: int
    hbm_bytes: int
    """``shard_bytes`` in device memory, 0 in host memory."""
    layout: Order | None = None
    """The layout that the value reports; its bytes on the host are always row-major."""

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of a shard as a NumPy array."""
        return math.prod(self.tensor.shape) * self.tensor.dtype.itemsize

    @cached_property
    def packed(self) -> bool:
        """Whether a shard may have another memory layout than a NumPy array."""
        return self.tensor.dtype == TOKEN or self.tensor.dtype.name in _PACKED


@dataclass(frozen=True)
class Join:
    """Values on single cores that were used as one, which lives until the first of them ends."""

    handles: list[int]
    value: ShardedValue


class ShardedValue:
    """A value with a shard on every core of its placement, as one array of the host client."""

    _shards: list[Any] | None = None
    _freed: set[int] | None = None
    _nan: bool | None = None
    join: Join | None = None
    """The value that this one and others make up; this one is its first shard."""
    _first: ShardedValue | None = None
    """The first shard of the value of which this one is a later shard."""
    event: Event | None = None
    """The end of the run that computes the value, if it was pending when the run began or failed a
    check."""
    error: BaseException | None = None
    """The error that reading the value raises, if a check of a run that led to it failed."""

    def __init__(self, array: Any, spec: ValueSpec, ledger: HbmLedger) -> None:
        self.array = array
        self.spec = spec
        self.ledger = ledger

    def fail(self, error: BaseException) -> None:
        """Makes waiting for the value raise ``error``."""
        self.error, self.event = error, Event()
        self.event.set(error)

    def inherit(self, sources: Iterable[ShardedValue]) -> None:
        """Takes over the error of the values from which this one was made."""
        error = error_of(sources)
        if error is not None:
            self.fail(error)

    def has_nan(self) -> bool:
        """Whether any core's shard has a NaN; waits for the value, and caches the answer."""
        if self._nan is None:
            numbers = jnp.issubdtype(self.spec.tensor.dtype, jnp.inexact)
            cores = range(len(self.spec.placement)) if numbers else ()
            self._nan = any(bool(np.isnan(self.numpy(core)).any()) for core in cores)
        return self._nan

    def shard(self, index: int) -> Any:
        """The shard on core number ``index`` of the placement, as a single-core array.

        Raises:
          DeletedBufferError: it was deleted or donated.
        """
        if self.is_deleted(index):
            raise DeletedBufferError(
                f"a buffer of shape {self.spec.tensor.shape} was used after it had been deleted "
                "or donated to a computation; keep a copy, or do not donate it."
            )
        if len(self.spec.placement) == 1:
            return self.array
        if self._shards is None:
            self._shards = self.array._arrays
        return self._shards[index]

    def numpy(self, index: int) -> np.ndarray:
        """The shard's values; waits for them. Shares memory with the shard where possible."""
        return np.asarray(self.shard(index))

    def replace(self, array: Any) -> None:
        """Gives the value other bits, of the same type on the same cores."""
        self._end_join()
        self.array, self._shards, self._nan = array, None, None

    def join_with(self, others: Iterable[ShardedValue], join: Join) -> None:
        """Remembers what this value and others make up, until one of them is freed or replaced."""
        self.join = join
        for other in others:
            other._end_join()
            other._first = self

    def _end_join(self) -> None:
        if self._first is not None:
            self._first.join = None
        self.join = self._first = None

    def is_deleted(self, index: int) -> bool:
        return self.array is None or (self._freed is not None and index in self._freed)

    def delete(self, index: int) -> bool:
        """Frees a shard; returns True if it was the last one."""
        if self.is_deleted(index):
            return False
        freed = self._freed = self._freed or set()
        freed.add(index)
        self.ledger.free((self.spec.placement.ids[index],), self.spec.hbm_bytes)
        if len(freed) == len(self.spec.placement):
            self.array = self._shards = None
            self._end_join()
            return True
        return False

    def release(self) -> None:
        """Frees all remaining shards."""
        if self.array is None:
            return
        spec = self.spec
        ids = spec.placement.ids
        if self._freed:
            ids = tuple(core for index, core in enumerate(ids) if index not in self._freed)
        self._let_go()
        if spec.hbm_bytes:
            self.ledger.free(ids, spec.hbm_bytes)

    def _let_go(self) -> None:
        self.array = None
        if self._shards is not None:
            self._shards = None
        if self.join is not None or self._first is not None:
            self._end_join()


def error_of(values: Iterable[ShardedValue]) -> BaseException | None:
    """The first error among values."""
    return next((value.error for value in values if value.error is not None), None)


def release_all(values: Iterable[ShardedValue]) -> None:
    """Frees all remaining shards of some values, with one entry in the ledger for those on the same
    cores."""
    freed: dict[tuple[HbmLedger, Placement], int] = {}
    for value in values:
        if value.array is None or value._freed:
            value.release()
        else:
            key = (value.ledger, value.spec.placement)
            freed[key] = freed.get(key, 0) + value.spec.hbm_bytes
            value._let_go()
    for (ledger, placement), nbytes in freed.items():
        ledger.free(placement.ids, nbytes)
