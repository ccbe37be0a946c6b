"""Chunks of tensors that collectives of uneven sizes exchange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronjax.emulate.frame import Values
from neuronjax.emulate.unit import Array, Unit
from neuronjax.errors import OutOfBoundsError
from neuronjax.program.collective import Uneven


class Chunks:
    """What a rank takes from its source, and puts into its result and its counts."""

    def __init__(self, unit: Unit, instruction: Uneven, ranks: int) -> None:
        (self._dst,) = instruction.dsts
        self._counts, self._instruction = instruction.counts, instruction
        self._path, self._ranks = unit.place.path, ranks
        self._result, self._table = unit.part(self._dst), unit.part(self._counts)

    def taken(self, source: Array, count: int, begin: int) -> Array:
        """`count` elements of a source. ``OutOfBoundsError``: it has fewer."""
        self._check(count, begin, len(source), "its source")
        return source[begin : begin + count]

    def put(self, values: Values, chunks: Sequence[Array]) -> None:
        """Writes what was received, and how much from each rank.

        OutOfBoundsError: a chunk does not fit.
        """
        size, slot = self._dst.elements, self._dst.elements // self._ranks
        places = [slot * place for place in range(self._ranks)]
        if self._instruction.has_places:
            table = self._table.bits(values, self.rows(3, 4)).reshape(-1, self._ranks)
            places = table[3].astype(int).tolist()
        flat = np.zeros(size, chunks[0].dtype)
        where = np.zeros(size, bool)
        for chunk, place in zip(chunks, places, strict=True):
            room = size if self._instruction.has_places else place + slot
            self._check(len(chunk), place, room, "the place for it in its result")
            flat[place : place + len(chunk)] = chunk
            where[place : place + len(chunk)] = True
        shape = (self._dst.partitions, self._dst.free_elements)
        self._result.move(values, flat.reshape(shape), where.reshape(shape))
        if not self._instruction.knows_received:
            received = np.zeros((self._counts.elements // self._ranks, self._ranks), np.uint32)
            received[2] = [len(chunk) for chunk in chunks]
            mask = self.rows(2, 3)
            self._table.move(values, received.reshape(mask.shape), mask)

    def rows(self, first: int, last: int | None = None) -> Array:
        """A mask of the counts in rows from `first` to before `last`; of one number, those before
        it."""
        begin, end = (0, first) if last is None else (first, last)
        mask = np.zeros((self._counts.elements // self._ranks, self._ranks), bool)
        mask[begin:end] = True
        return mask.reshape(self._counts.partitions, self._counts.free_elements)

    def _check(self, count: int, begin: int, size: int, what: str) -> None:
        if begin + count > size:
            raise OutOfBoundsError(
                f"{self._path}: {self._instruction.mnemonic} takes {count} elements from {begin}"
                f" on, but {what} ends at {size}. Check the counts."
            )
