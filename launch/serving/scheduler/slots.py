"""The sequences that have a place in the batch, as arrays, so that a step's plan costs little."""

from collections.abc import Collection

import numpy as np

from launch.serving.scheduler.sequences import Sequence


class Slots:
    """Places 0 … count - 1 of sequences, and what planning asks of all of them at once. Neighbours
    form `groups` of equal size."""

    def __init__(
        self, count: int, blocks_per_sequence: int, groups: int = 1, tables: int = 1
    ) -> None:
        """Sequences have so many block tables each."""

        def zeros(dtype: type = np.int32) -> np.ndarray:
            return np.zeros(count, dtype)

        self.sequences: list[Sequence | None] = [None] * count
        self.length = zeros()  # tokens that are known, or made by steps that were planned
        self.pending = zeros()  # of them: those that the host does not know yet
        self.computed = zeros()  # tokens in the cache when all planned steps have run
        self.capacity = zeros()  # tokens that its blocks hold
        self.limit = zeros()
        self.published = zeros()
        self.prefilling = zeros(np.bool_)  # more than the last token of it is to be computed
        self.one_by_one = zeros(np.bool_)
        self.speculates = zeros(np.bool_)
        self.serial = zeros(np.int64)  # changes whenever the slot changes its sequence
        self.number = zeros(np.int64)  # of the sequence: its place in the order of arrival
        self.priority = zeros(np.int64)
        self.has_stops = zeros(np.bool_)  # tokens may end it before its limit
        self.tables = np.zeros((count, tables, blocks_per_sequence), np.int32)
        self.first_blocks = np.zeros((count, tables), np.int32)  # those before have been given back
        self.last_blocks = np.zeros((count, tables), np.int32)  # those from here on are lacking
        self.groups, self._per_group = groups, count // groups
        self._free = [
            list(range(first + self._per_group - 1, first - 1, -1))
            for first in range(0, count, self._per_group)
        ]

    @property
    def used(self) -> int:
        """How many sequences have a place."""
        return sum(map(self.used_of, range(self.groups)))

    def used_of(self, group: int) -> int:
        """How many sequences of a group have a place."""
        return self._per_group - len(self._free[group])

    def free(self, group: int) -> int:
        """How many places of a group are left."""
        return len(self._free[group])

    def group(self, slot: int) -> int:
        """Whose slot it is."""
        return slot // self._per_group

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
        """How many of these slots the group with the most of them has."""
        if self.groups == 1:
            return len(slots)
        return int(np.bincount(slots // self._per_group).max(initial=0))

    def tokens_left(self) -> list[int]:
        """How many tokens each group has yet to compute."""
        left = np.where(self.limit > 0, self.limit - self.computed, 0)
        tokens: list[int] = left.reshape(self.groups, -1).sum(axis=1).tolist()
        return tokens

    def enter(self, sequence: Sequence, computed: int, group: int = 0) -> int:
        """Gives a sequence a slot; the cache holds the first `computed` tokens of it already."""
        slot = self._free[group].pop()
        self.sequences[slot] = sequence
        sequence.slot = slot
        self.length[slot] = len(sequence.tokens)
        self.pending[slot] = 0
        self.computed[slot] = computed
        self.capacity[slot] = 0
        self.first_blocks[slot] = self.last_blocks[slot] = 0
        self.limit[slot] = sequence.limit
        self.published[slot] = sequence.published
        self.prefilling[slot] = len(sequence.tokens) - computed > 1
        self.one_by_one[slot] = sequence.one_by_one
        self.speculates[slot] = sequence.speculates
        self.number[slot] = sequence.number
        self.priority[slot] = sequence.priority
        self.has_stops[slot] = bool(sequence.stop_tokens)
        self.serial[slot] += 1
        return slot

    def leave(self, slot: int) -> Sequence:
        """Takes a sequence's slot away: what is under way for it will be ignored."""
        sequence = self.sequences[slot]
        assert sequence is not None
        self.sequences[slot] = None
        sequence.slot = None
        self.length[slot] = self.computed[slot] = self.limit[slot] = 0
        self.prefilling[slot] = False
        self.serial[slot] += 1
        self._free[self.group(slot)].append(slot)
        return sequence

    def show_blocks(self, slot: int, block_size: int) -> None:
        """Notes the blocks that a sequence has got at the ends of its tables."""
        sequence = self.sequences[slot]
        assert sequence is not None
        for index, table in enumerate(sequence.tables):
            first, end = int(self.last_blocks[slot, index]), len(table)
            if end > first:
                self.tables[slot, index, first:end] = table[first:]
                self.last_blocks[slot, index] = end
        self.capacity[slot] = min(map(len, sequence.tables)) * block_size

    def last(self, protected: Collection[int], group: int | None = None) -> int | None:
        """The slot of the sequence with the lowest rank, of a group or of all, but for those that
        are protected."""
        there = self.limit > 0
        there[list(protected)] = False
        if group is not None:
            there &= np.arange(len(there)) // self._per_group == group
        places = there.nonzero()[0]
        if not places.size:
            return None
        return int(places[np.lexsort((self.number[places], self.priority[places]))[-1]])

    def decodable(self) -> np.ndarray:
        """The slots whose next token can be made, int64 [n]."""
        ready = (self.length < self.limit) & ~self.prefilling
        if self.one_by_one.any():
            ready &= ~(self.one_by_one & (self.pending > 0))
        return ready.nonzero()[0]
