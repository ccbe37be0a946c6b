"""Slots and blocks: who gets them, who gives them back."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items

import numpy as np

from launch.serving.cache.blocks import BlockPool
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Counters
from launch.serving.scheduler.waiting import Waiting


class Placement:
    """The batch and the queue before it. Each group of slots has a pool."""

    def __init__(
        self, slots: Slots, pools: Items[BlockPool], waiting: Waiting, counters: Counters
    ) -> None:
        self.slots, self.pools, self.waiting = slots, pools, waiting
        self._size = pools[0].block_size
        self._counters = counters
        # Who did not fit, and in which state: nobody asks again before something has changed.
        self._refused: list[tuple[int, int, int, int] | None] = [None] * len(pools)

    def admit(self, protected: Collection[int], groups: Items[int] = (0,)) -> int | None:
        """Gives the first sequence that waits a slot of one of these groups and the blocks of its
        text, if there are enough, or those of sequences with a lower priority; returns the slot.

        `protected` slots are left alone.
        """
        sequence = self.waiting.first()
        if sequence is None:
            return None
        groups = self._preferred(sequence, groups)
        while (group := self._fitting(sequence, groups)) is None:
            victim = self._victim(sequence, protected, groups)
            if victim is None:
                return None
            self.preempt(victim)
        self.waiting.pop()
        return self._enter(sequence, group)

    def grow(self, short: np.ndarray) -> bool:
        """Gives each of these slots one block more. False: somebody lost the slot for that."""
        unharmed = True
        for slot in sorted(short.tolist(), key=self.rank):
            group = self.slots.group(slot)
            while self.slots.sequences[slot] is not None:
                blocks = self.pools[group].allocate(1)
                if blocks is not None:
                    self._extend(slot, blocks)
                    break
                victim = self.slots.last((), group)
                assert victim is not None
                self.preempt(victim)
                unharmed = False
        return unharmed

    def could_admit(self) -> bool:
        """Whether the sequence that waits first has a slot, or can take one from another."""
        first = self.waiting.first()
        if first is None:
            return False
        victim = self.slots.last(())
        return (
            any(map(self.slots.free, range(self.slots.groups)))
            or victim is None
            or self._sequence(victim).priority > first.priority
        )

    def blocks_short(self, where: np.ndarray, tokens: int) -> np.ndarray:
        """How many blocks each of these slots lacks for so many more tokens, int [n]."""
        needed = -(-(self.slots.computed[where] + tokens) // self._size)
        short: np.ndarray = np.maximum(needed - self.slots.capacity[where] // self._size, 0)
        return short

    def have_blocks(self, where: np.ndarray, tokens: int) -> bool:
        """Whether there are blocks for so many more tokens of each of these slots."""
        short = self.blocks_short(where, tokens)
        needed = [0] * len(self.pools)
        for index in short.nonzero()[0].tolist():
            needed[self.slots.group(int(where[index]))] += int(short[index])
        return all(count <= pool.available for count, pool in zip(needed, self.pools, strict=True))

    def extend_by(self, where: np.ndarray, tokens: int) -> None:
        """Gives these slots the blocks for so many more tokens; there are enough."""
        short = self.blocks_short(where, tokens)
        for index in short.nonzero()[0].tolist():
            slot = int(where[index])
            blocks = self.pools[self.slots.group(slot)].allocate(int(short[index]))
            assert blocks is not None
            self._extend(slot, blocks)

    def preempt(self, slot: int) -> None:
        """Sends a sequence back to the queue; it will be computed again."""
        sequence = self.leave(slot)
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.add(sequence)

    def leave(self, slot: int) -> Sequence:
        """Takes slot and blocks away from a sequence."""
        sequence = self.slots.leave(slot)
        self.pools[self.slots.group(slot)].release(sequence.blocks)
        sequence.blocks.clear()
        return sequence

    def publish(self, places: np.ndarray, known: np.ndarray) -> None:
        """Lets others use the blocks of these slots that are full of `known` tokens [n]."""
        slots, size = self.slots, self._size
        full = np.minimum(known, slots.computed[places]) // size
        for index in (full > slots.published[places]).nonzero()[0].tolist():
            slot = int(places[index])
            sequence, pool = self._sequence(slot), self.pools[slots.group(slot)]
            for place in range(sequence.published, int(full[index])):
                tokens = sequence.tokens[place * size : (place + 1) * size]
                sequence.node = pool.publish(sequence.node, tokens, sequence.blocks[place])
            sequence.published = slots.published[slot] = int(full[index])

    def rank(self, slot: int) -> tuple[int, int]:
        """Of the sequence there: the lower one goes first."""
        return self._sequence(slot).rank

    def _preferred(self, sequence: Sequence, groups: Items[int]) -> Items[int]:
        """Groups, the one with the fewest tokens left to compute first, those of the sequence among
        them that its cache does not hold."""
        if len(groups) == 1:
            return groups
        left = self.slots.tokens_left()

        def work(group: int) -> tuple[int, int]:
            known = self.pools[group].prefix(sequence.tokens, sequence.root)
            return left[group] - len(known) * self._size, self.slots.used_of(group)

        return sorted(groups, key=work)

    def _fitting(self, sequence: Sequence, groups: Items[int]) -> int | None:
        """The first of the groups in which there is room."""
        return next((g for g in groups if self.slots.free(g) and self._fits(sequence, g)), None)

    def _victim(
        self, sequence: Sequence, protected: Collection[int], groups: Items[int]
    ) -> int | None:
        """The slot that makes room: of the first group that has one of a lower priority."""
        for victim in self._last_of(protected, groups):
            if self._sequence(victim).priority > sequence.priority:
                return victim
        return None

    def _last_of(self, protected: Collection[int], groups: Items[int]) -> Iterator[int]:
        lasts = (self.slots.last(protected, group) for group in groups)
        return (slot for slot in lasts if slot is not None)

    def _fits(self, sequence: Sequence, group: int) -> bool:
        """Whether there are blocks for the text, and one for each other sequence to go on."""
        pool = self.pools[group]
        state = (sequence.number, pool.available, pool.known, self.slots.used_of(group))
        if state == self._refused[group]:
            return False
        fits = self._has_blocks_for(sequence, group)
        self._refused[group] = None if fits else state
        return fits

    def _has_blocks_for(self, sequence: Sequence, group: int) -> bool:
        pool = self.pools[group]
        known = pool.prefix(sequence.tokens, sequence.root)
        unheld = pool.count_unheld([entry.block for entry in known])
        reserve = self.slots.used_of(group)
        free = pool.available - unheld
        return free >= self._needed(sequence) - len(known) + min(reserve, free // 8)

    def _needed(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self._size)

    def _enter(self, sequence: Sequence, group: int) -> int:
        pool = self.pools[group]
        known = pool.prefix(sequence.tokens, sequence.root)
        blocks = [entry.block for entry in known]
        pool.hold(blocks)
        more = pool.allocate(self._needed(sequence) - len(blocks))
        assert more is not None
        computed = len(blocks) * self._size
        sequence.blocks, sequence.published = blocks, len(known)
        sequence.node = known[-1].node if known else sequence.root
        if not sequence.preemptions:
            sequence.cached_tokens = computed
        self._counters.prefix_queries += len(sequence.tokens)
        self._counters.prefix_hits += computed
        slot = self.slots.enter(sequence, computed, group)
        self._extend(slot, more)
        return slot

    def _extend(self, slot: int, blocks: list[int]) -> None:
        sequence = self._sequence(slot)
        first = 0 if self.slots.capacity[slot] == 0 else len(sequence.blocks)
        sequence.blocks.extend(blocks)
        self.slots.show_blocks(slot, first, self._size)

    def _sequence(self, slot: int) -> Sequence:
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        return sequence
