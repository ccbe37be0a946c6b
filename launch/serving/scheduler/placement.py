"""Slots and blocks: who gets them, who gives them back."""

from collections.abc import Collection
from collections.abc import Sequence as Items
from itertools import chain
from typing import NamedTuple

import numpy as np

from launch.serving.cache.blocks import BlockPool, Prefix
from launch.serving.cache.windows import KeyWindow, blocks_of_text
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Counters
from launch.serving.scheduler.waiting import Waiting


class Fit(NamedTuple):
    """A place with room for a sequence."""

    group: int  # of slots
    known: Prefix  # what the cache holds of its text
    needed: list[int]  # blocks that it gets beside those, for each group of layers


class Placement:
    """The batch and the queue before it. Each group of slots has a pool."""

    def __init__(
        self,
        slots: Slots,
        pools: Items[BlockPool],
        waiting: Waiting,
        counters: Counters,
        *,
        windows: Items[KeyWindow],
        chunk: int,
    ) -> None:
        """`windows` of each group of layers; a step computes up to `chunk` tokens of a text."""
        self.slots, self.pools, self.waiting = slots, pools, waiting
        self._size = pools[0].block_size
        self._windows, self._chunk = windows, chunk
        self._partial = [i for i, window in enumerate(windows) if window.size is not None]
        self._counters = counters
        # Who did not fit, and in which state: nobody asks again before something has changed.
        self._refused: list[tuple[int, int, int, int] | None] = [None] * len(pools)

    def admit(self, protected: Collection[int], groups: Items[int] = (0,)) -> int | None:
        """Gives the first sequence that waits a slot of one of these groups and the blocks of its
        text, if there are enough, or those of sequences with a lower priority or of a client that
        has more; returns the slot.

        `protected` slots are left alone.
        """
        sequence = self.waiting.first()
        if sequence is None:
            return None
        groups = self._rank_groups(sequence, groups)
        while (fit := self._fitting(sequence, groups)) is None:
            victim = self._victim(sequence, protected, groups)
            if victim is None:
                return None
            self.preempt(victim)
        self.waiting.take(sequence)
        return self._enter(sequence, fit)

    def fill(self, where: np.ndarray, ends: np.ndarray) -> bool:
        """Gives those of these slots that lack any the blocks for texts of up to `ends` tokens [n],
        and takes away what no layer will look at again. False: somebody lost the slot for that."""
        lacking = (self.slots.capacity[where] < ends).nonzero()[0]
        if not len(lacking):
            return True
        where, ends = where[lacking], ends[lacking]
        self.drop_passed(where)
        if self._extend(where, ends):
            return True
        unharmed = True
        for index in sorted(range(len(where)), key=lambda index: self.rank(int(where[index]))):
            slot, own = int(where[index]), slice(index, index + 1)
            while self.slots.sequence(slot) and not self._extend(where[own], ends[own]):
                victim = self.slots.last(self.slots.group(slot))
                assert victim is not None
                self.preempt(victim)
                unharmed = False
        return unharmed

    def could_admit(self) -> bool:
        """Whether the sequence that waits first has a slot, or can take one from another."""
        first = self.waiting.first()
        if first is None:
            return False
        free = any(map(self.slots.free, range(self.slots.groups)))
        return free or self.slots.last_for(first) is not None

    def have_blocks(self, where: np.ndarray, tokens: int) -> bool:
        """Whether there are blocks for so many more tokens of each of these slots."""
        short = self.slots.short(where, self.slots.computed[where] + tokens)
        return self._have(self.slots.sums_of_groups(where, short))

    def extend_by(self, where: np.ndarray, tokens: int) -> None:
        """Gives these slots the blocks for so many more tokens; there are enough."""
        ends = self.slots.computed[where] + tokens
        lacking = self.slots.capacity[where] < ends
        enough = self._extend(where[lacking], ends[lacking])
        assert enough

    def widen(self, where: np.ndarray, ends: np.ndarray) -> None:
        """Gives these slots the blocks for texts of up to `ends` tokens [n], if nobody has to give
        any up for that."""
        lacking = self.slots.capacity[where] < ends
        if lacking.any():
            self.drop_passed(where[lacking])
            self._extend(where[lacking], ends[lacking])

    def drop_passed(self, where: np.ndarray) -> None:
        """Takes the blocks away from these slots that no layer will look at again."""
        for layers in self._partial:
            for slot in where.tolist():
                first = self._windows[layers].first(int(self.slots.computed[slot])) // self._size
                if first > self.slots.first_blocks[slot, layers]:
                    self.publish(np.array([slot]))
                    self._pool(slot).release(self.slots.drop_blocks(slot, layers, first))

    def preempt(self, slot: int) -> None:
        """Sends a sequence back to the queue; it will be computed again."""
        sequence = self.leave(slot)
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.add(sequence)

    def leave(self, slot: int) -> Sequence:
        """Takes slot and blocks away from a sequence."""
        self.publish(np.array([slot]))
        # The end of a text goes first: its beginning is of more use to others.
        self._pool(slot).release(self.slots.held_blocks(slot))
        return self.slots.leave(slot)

    def publish(self, where: np.ndarray) -> None:
        """Lets others use the blocks of these slots that are full of tokens that the host knows."""
        slots = self.slots
        known = slots.length[where] - slots.pending[where]
        full = np.minimum(known, slots.computed[where]) // self._size
        changed = full > slots.published[where]
        where, ends = where[changed], full[changed]
        firsts = slots.published[where]
        slots.published[where] = ends
        ranges = zip(firsts.tolist(), ends.tolist(), strict=True)
        for slot, sequence, (first, end) in zip(
            where.tolist(), slots.sequences(where), ranges, strict=True
        ):
            # A stop token among guesses leaves fewer tokens than were computed.
            keys = sequence.keys(end, self._size)[first:]
            tables = slots.tables[slot, :, first : first + len(keys)].tolist()
            for layers, blocks in enumerate(tables):
                self._pool(slot).publish(layers, keys, blocks)

    def rank(self, slot: int) -> tuple[int, int]:
        """The rank of the sequence there: the lower one goes first."""
        return self._sequence(slot).rank

    def _rank_groups(self, sequence: Sequence, groups: Items[int]) -> Items[int]:
        """Groups, the one with the fewest tokens left to compute first, those of the sequence among
        them that its cache does not hold."""
        if len(groups) == 1:
            return groups
        left = self.slots.tokens_left()

        def work(group: int) -> tuple[int, int]:
            known = self._find_prefix(sequence, group).length
            return left[group] - known * self._size, self.slots.used_of(group)

        return sorted(groups, key=work)

    def _fitting(self, sequence: Sequence, groups: Items[int]) -> Fit | None:
        """The room in the first of the groups that has any."""
        fits = (self._fit(sequence, group) for group in groups if self.slots.free(group))
        return next((fit for fit in fits if fit is not None), None)

    def _victim(
        self, sequence: Sequence, protected: Collection[int], groups: Items[int]
    ) -> int | None:
        """The slot that makes room, of the first group that has one."""
        lasts = (self.slots.last_for(sequence, group, protected) for group in groups)
        return next((slot for slot in lasts if slot is not None), None)

    def _fit(self, sequence: Sequence, group: int) -> Fit | None:
        """The room in a group, if it has blocks for the text, and one for each other sequence to go
        on."""
        if self._refused[group] == self._state(sequence, group):
            return None
        pool, known = self.pools[group], self._find_prefix(sequence, group)
        needed = self._count_needed(sequence, known)
        free = pool.available - pool.count_unheld(known.blocks)
        if free >= sum(needed) + min(self.slots.used_of(group), free // 8):
            return Fit(group, known, needed)
        self._refused[group] = self._state(sequence, group)
        return None

    def _state(self, sequence: Sequence, group: int) -> tuple[int, int, int, int]:
        pool = self.pools[group]
        return sequence.number, pool.available, pool.known, self.slots.used_of(group)

    def _find_prefix(self, sequence: Sequence, group: int) -> Prefix:
        """Returns the prefix of a text that the cache of a group of slots holds. Its last token is
        never among that: the model must see it to say what follows."""
        pool, count = self.pools[group], (len(sequence.tokens) - 1) // self._size
        if sequence.scores_prompt:
            count = 0  # logits are kept nowhere
        keys = sequence.keys(count, self._size)
        if keys and pool.knows(keys[0]):
            self.publish(self.slots.of_group(group))
        return pool.prefix(keys)

    def _count_needed(self, sequence: Sequence, known: Prefix) -> list[int]:
        """Counts the blocks that a sequence gets with its slot, for each group of layers: those of
        the whole text, or as many as it will hold at once."""
        length, pool = len(sequence.tokens), self.pools[0]
        held = blocks_of_text(self._windows, length, self._chunk, self._size)
        whole = -(-length // self._size)
        ends = (
            min(pool.first_seen(layers, known.length) + most, whole)
            for layers, most in enumerate(held)
        )
        return [max(end - known.length, 0) for end in ends]

    def _enter(self, sequence: Sequence, fit: Fit) -> int:
        group, known, needed = fit
        pool, computed = self.pools[group], known.length * self._size
        pool.hold(known.blocks)
        if not sequence.preemptions:
            sequence.cached_tokens = computed
        self._counters.prefix_queries += len(sequence.tokens)
        self._counters.prefix_hits += computed
        pairs = zip(known.tables, needed, strict=True)
        tables = [table + pool.take(count) for table, count in pairs]
        slot = self.slots.enter(sequence, group, tables, known.length)
        self.slots.first_blocks[slot] = [
            pool.first_seen(layers, known.length) for layers in range(len(tables))
        ]
        return slot

    def _extend(self, where: np.ndarray, ends: np.ndarray) -> bool:
        """Gives these slots, in ascending order, the blocks for texts of up to `ends` tokens [n],
        if there are enough for all of them."""
        short = self.slots.short(where, ends)
        sums = self.slots.sums_of_groups(where, short)
        if not self._have(sums):
            return False
        blocks = (pool.take(count) for pool, count in zip(self.pools, sums, strict=True))
        self.slots.add_blocks(where, short, chain(*blocks))
        return True

    def _have(self, counts: Items[int]) -> bool:
        """Whether each group of slots has so many blocks."""
        return all(count <= pool.available for count, pool in zip(counts, self.pools, strict=True))

    def _pool(self, slot: int) -> BlockPool:
        return self.pools[self.slots.group(slot)]

    def _sequence(self, slot: int) -> Sequence:
        sequence = self.slots.sequence(slot)
        assert sequence is not None
        return sequence
