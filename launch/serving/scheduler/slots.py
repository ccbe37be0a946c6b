"""The sequences that have a place in the batch, as arrays, so that a step's plan costs little."""

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items

import numpy as np

from launch.serving.cache.blocks import SCRATCH
from launch.serving.scheduler.sequences import Sequence


class Slots:
    """Places 0 … count - 1 of sequences, and what planning asks of all of them at once. Neighbours
    form `groups` of equal size."""

    def __init__(
        self,
        count: int,
        blocks_per_sequence: int,
        block_size: int,
        groups: int = 1,
        tables: int = 1,
    ) -> None:
        """Each sequence has this many block tables of up to `blocks_per_sequence` blocks."""

        def zeros(dtype: type = np.int32) -> np.ndarray:
            return np.zeros(count, dtype)

        self._sequences = np.full(count, None)
        self.length = zeros()  # tokens that are known, or made by steps that were planned
        self.pending = zeros()  # of them: those that the host does not know yet
        self.computed = zeros()  # tokens in the cache when all planned steps have run
        self.capacity = zeros()  # tokens that its blocks hold
        self.limit = zeros()
        self.published = zeros()  # its first blocks that others may use
        self.prefilling = zeros(np.bool_)  # more than the last token of it is to be computed
        self.one_by_one = zeros(np.bool_)
        self.speculates = zeros(np.bool_)
        self.serial = zeros(np.int64)  # changes whenever the slot changes its sequence
        self.number = zeros(np.int64)  # of the sequence: its place in the order of arrival
        self.priority = zeros(np.int64)
        self.has_stops = zeros(np.bool_)  # tokens may end it before its limit
        self.held = Counter[str]()  # slots of each client
        self._block_size = block_size
        self.tables = np.full((count, tables, blocks_per_sequence), SCRATCH, np.int32)
        self.first_blocks = np.zeros((count, tables), np.int32)  # those before have been given back
        self.last_blocks = np.zeros((count, tables), np.int32)  # those from here on are lacking
        self.changes = 0  # how often a slot has changed its sequence
        self.groups, self._per_group = groups, count // groups
        self._free = [
            list(range(first + self._per_group - 1, first - 1, -1))
            for first in range(0, count, self._per_group)
        ]

    def sequence(self, slot: int) -> Sequence | None:
        """Returns the sequence of a slot, if it has one."""
        sequence: Sequence | None = self._sequences[slot]
        return sequence

    def sequences(self, slots: np.ndarray) -> list[Sequence]:
        """Returns the sequences of slots that all have one."""
        sequences: list[Sequence] = self._sequences[slots].tolist()
        return sequences

    @property
    def used(self) -> int:
        """The number of sequences that have a place."""
        return sum(map(self.used_of, range(self.groups)))

    def used_of(self, group: int) -> int:
        """Counts the sequences of a group that have a place."""
        return self._per_group - len(self._free[group])

    def free(self, group: int) -> int:
        """Counts the places of a group that are left."""
        return len(self._free[group])

    def group(self, slot: int) -> int:
        """The number of the group that a slot belongs to."""
        return slot // self._per_group

    def of_group(self, group: int) -> np.ndarray:
        """The slots of a group, int64 [n]."""
        return np.arange(group * self._per_group, (group + 1) * self._per_group)

    def rows(self, slots: np.ndarray, count: int) -> np.ndarray:
        """The rows of a step of `count` rows that these ascending slots have: every group has as
        many, and fills them from its first on. int64 [n]"""
        if self.groups == 1:
            return np.arange(len(slots))
        groups = slots // self._per_group
        firsts = np.searchsorted(groups, np.arange(self.groups))
        within = np.arange(len(slots)) - firsts[groups]
        rows: np.ndarray = groups * (count // self.groups) + within
        return rows

    def most_of_a_group(self, slots: np.ndarray) -> int:
        """Counts those of these slots that lie in the group with the most of them."""
        if self.groups == 1:
            return len(slots)
        return int(np.bincount(slots // self._per_group).max(initial=0))

    def sums_of_groups(self, slots: np.ndarray, counts: np.ndarray) -> list[int]:
        """Adds up these counts of slots [n, …] for each group."""
        if self.groups == 1:
            return [int(counts.sum())]
        sums = [0] * self.groups
        for group, count in zip(slots // self._per_group, counts.sum(axis=1), strict=True):
            sums[group] += int(count)
        return sums

    def tokens_left(self) -> list[int]:
        """Counts the tokens that each group has yet to compute."""
        left = np.where(self.limit > 0, self.limit - self.computed, 0)
        tokens: list[int] = left.reshape(self.groups, -1).sum(axis=1).tolist()
        return tokens

    def enter(self, sequence: Sequence, group: int, tables: Items[Items[int]], known: int) -> int:
        """Gives a sequence a slot of a group, and these block tables, whose first `known` blocks
        hold its text already."""
        slot, computed = self._free[group].pop(), known * self._block_size
        self._sequences[slot] = sequence
        sequence.slot = slot
        self.length[slot] = len(sequence.tokens)
        self.pending[slot] = 0
        self.computed[slot] = computed
        for index, table in enumerate(tables):
            self.tables[slot, index, : len(table)] = table
        self.last_blocks[slot] = lengths = list(map(len, tables))
        self.capacity[slot] = min(lengths) * self._block_size
        self.limit[slot] = sequence.limit
        self.published[slot] = known
        self.prefilling[slot] = len(sequence.tokens) - computed > 1
        self.one_by_one[slot] = sequence.one_by_one
        self.speculates[slot] = sequence.speculates
        self.number[slot] = sequence.number
        self.priority[slot] = sequence.priority
        self.has_stops[slot] = bool(sequence.stop_tokens)
        self.serial[slot] += 1
        self.changes += 1
        self.held[sequence.client] += 1
        return slot

    def leave(self, slot: int) -> Sequence:
        """Takes a sequence's slot away: what is under way for it will be ignored."""
        sequence = self.sequence(slot)
        assert sequence is not None
        self._sequences[slot] = sequence.slot = None
        self.length[slot] = self.pending[slot] = self.computed[slot] = self.limit[slot] = 0
        self.prefilling[slot] = False
        self.tables[slot] = SCRATCH
        self.serial[slot] += 1
        self.changes += 1
        self._free[self.group(slot)].append(slot)
        self.held -= Counter((sequence.client,))
        return sequence

    def short(self, slots: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Counts the blocks that the tables of these slots lack for texts of up to `ends` tokens
        [n], int [n, tables]."""
        blocks = -(-ends // self._block_size)
        lacking: np.ndarray = np.maximum(blocks[:, None] - self.last_blocks[slots], 0)
        return lacking

    def add_blocks(self, slots: np.ndarray, counts: np.ndarray, blocks: Iterable[int]) -> None:
        """Appends `counts` [n, tables] blocks to the tables of these slots, in the order of slots
        and tables."""
        firsts = self.last_blocks[slots]
        ends = firsts + counts
        self.last_blocks[slots] = ends
        self.capacity[slots] = ends.min(axis=1) * self._block_size
        left = iter(blocks)
        for slot, *parts in zip(slots.tolist(), firsts.tolist(), ends.tolist(), strict=True):
            for table, (first, end) in enumerate(zip(*parts, strict=True)):
                for place in range(first, end):  # mostly one: quicker than a slice
                    self.tables[slot, table, place] = next(left)

    def drop_blocks(self, slot: int, table: int, end: int) -> list[int]:
        """Takes the blocks before `end` out of one of a sequence's tables."""
        first = int(self.first_blocks[slot, table])
        blocks: list[int] = self.tables[slot, table, first:end].tolist()
        self.tables[slot, table, first:end] = SCRATCH
        self.first_blocks[slot, table] = end
        return blocks

    def held_blocks(self, slot: int) -> list[int]:
        """The blocks of a sequence: those of the end of its text come first."""
        end = int(self.last_blocks[slot].max())
        places = self.tables[slot, :, :end].T[::-1]
        blocks: list[int] = places[places != SCRATCH].tolist()
        return blocks

    def last_for(
        self, sequence: Sequence, group: int | None = None, protected: Collection[int] = ()
    ) -> int | None:
        """The slot that makes room for a sequence: the last one of a lower priority, or else of a
        client that has two more than the sequence's own, so that it still has as many."""
        slot = self.last(group, self.priority > sequence.priority, protected)
        if slot is not None:
            return slot
        least = self.held[sequence.client] + 2
        rich = {client for client, count in self.held.items() if count >= least}
        if not rich:
            return None
        theirs = np.array([s is not None and s.client in rich for s in self._sequences])
        return self.last(group, theirs & (self.priority >= sequence.priority), protected)

    def last(
        self,
        group: int | None = None,
        among: np.ndarray | None = None,
        protected: Collection[int] = (),
    ) -> int | None:
        """The slot of the sequence that goes last: in a group or in all, among those of a mask
        bool [slots], and not in a protected slot."""
        there = self.limit > 0
        if among is not None:
            there &= among
        if protected:
            there[list(protected)] = False
        if group is not None and self.groups > 1:
            there &= np.arange(len(there)) // self._per_group == group
        places = there.nonzero()[0]
        if not places.size:
            return None
        return int(places[np.lexsort((self.number[places], self.priority[places]))[-1]])

    def decodable(self) -> np.ndarray:
        """The slots whose next token can be made, int64 [n]."""
        waits = self.prefilling | self.one_by_one & (self.pending > 0)
        return ((self.length < self.limit) & ~waits).nonzero()[0]
