"""Batches made of rows, in an order that does not depend on the number of processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import grain
import jax
import numpy as np

from launch.data.packings import ONE_READER, Rows
from launch.data.records import Counts

Batch = Mapping[str, Any]  # arrays of equal leading dimension, or dictionaries of such


@dataclass(frozen=True)
class Data:
    """The data of a run."""

    rows: Rows  # endless, in an order that depends on the seed alone
    held_out: Iterable[Any]  # rows, each time from the first to the last
    size: int  # tokens or examples of an epoch
    rows_of_epoch: Callable[[], int]  # how many rows hold each of them once; packs them to know it
    counts: Counts
    identity: Mapping[str, Any]  # JSON: equal only for the same rows in the same order

    def shapes(self, batch_size: int) -> Batch:
        """The shapes and dtypes of a batch, as jax.ShapeDtypeStruct."""

        def shape(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((batch_size, *np.shape(leaf)), np.asarray(leaf).dtype)

        return jax.tree.map(shape, next(iter(self.rows)))


class Batches(Protocol):
    """An endless iterator over batches, or over the rows of them that a process needs."""

    def __next__(self) -> Batch: ...

    def get_state(self) -> Any:
        """A small JSON value, identical on all processes."""

    def set_state(self, state: Any) -> None:
        """Continues after the last batch before `get_state`."""


def make_batches(rows: Rows, batch_size: int, local: np.ndarray | None = None) -> Batches:
    """Batches of endless rows; of each only the rows numbered `local`, [n], or all of them."""
    local = np.arange(batch_size) if local is None else local
    if isinstance(rows, grain.MapDataset):
        return _ByNumber(rows, batch_size, local)
    return _InOrder(rows, batch_size, local)


class _LocalRows(grain.MapDataset[Any]):
    """The rows with the numbers `local` of every `batch_size`."""

    def __init__(self, rows: Rows, batch_size: int, local: np.ndarray) -> None:
        super().__init__(rows)
        self._batch_size, self._local = batch_size, local

    def __len__(self) -> int:
        return len(self._parent) // self._batch_size * len(self._local)

    def __getitem__(self, index: Any) -> Any:
        batch, number = divmod(index, len(self._local))
        return self._parent[batch * self._batch_size + int(self._local[number])]


class _ByNumber:
    """Rows that are not needed here are not made."""

    def __init__(self, rows: Rows, batch_size: int, local: np.ndarray) -> None:
        dataset = _LocalRows(rows, batch_size, local).to_iter_dataset(ONE_READER)
        self._iterator = iter(dataset.batch(len(local), drop_remainder=True))
        self._batch_size, self._local_size = batch_size, len(local)

    def __next__(self) -> Batch:
        batch: Batch = next(self._iterator)
        return batch

    def get_state(self) -> Any:
        taken = self._iterator.get_state()["next_index"] // self._local_size
        return {"next_index": taken * self._batch_size}

    def set_state(self, state: Any) -> None:
        taken = state["next_index"] // self._batch_size
        self._iterator.set_state({"next_index": taken * self._local_size})


class _InOrder:
    """Every process makes all rows, as each depends on those before it, and keeps its own."""

    def __init__(self, rows: Rows, batch_size: int, local: np.ndarray) -> None:
        self._iterator = iter(rows.batch(batch_size, drop_remainder=True))
        self._local = local

    def __next__(self) -> Batch:
        return select(next(self._iterator), self._local)

    def get_state(self) -> Any:
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        self._iterator.set_state(_with_tuples(state))


def _with_tuples(state: Any) -> Any:
    """A state as it was before JSON made lists of its tuples, which grain compares with tuples."""
    if isinstance(state, dict):
        return {name: _with_tuples(value) for name, value in state.items()}
    return tuple(map(_with_tuples, state)) if isinstance(state, list) else state


def held_out_batches(rows: Iterable[Any], batch_size: int) -> Iterator[Batch]:
    """Batches of all rows, in order; the last one is padded with zeros, which do not count."""
    remaining = iter(rows)
    while group := list(islice(remaining, batch_size)):
        missing = batch_size - len(group)

        def stacked(*leaves: Any, missing: int = missing) -> np.ndarray:
            array = np.stack(leaves)
            return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))

        yield jax.tree.map(stacked, *group)


def select(batch: Batch, local: np.ndarray) -> Batch:
    """The rows of a batch with these numbers."""
    chosen: Batch = jax.tree.map(lambda array: array[local], batch)
    return chosen
