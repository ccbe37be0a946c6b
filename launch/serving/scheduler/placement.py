"""Slots and blocks: who gets them, who gives them back."""

from collections.abc import Collection

import numpy as np

from launch.serving.cache.blocks import BlockPool
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Counters
from launch.serving.scheduler.waiting import Waiting


class Placement:
    """The batch and the queue before it."""

    def __init__(self, slots: Slots, pool: BlockPool, waiting: Waiting, counters: Counters) -> None:
        self.slots, self.pool, self.waiting = slots, pool, waiting
        self._counters = counters
        # Who did not fit, and in which state: nobody asks again before something has changed.
        self._refused: tuple[int, int, int, int] | None = None

    def admit(self, protected: Collection[int]) -> int | None:
        """Gives the first sequence that waits a slot and the blocks of its text, if there are
        enough, or those of sequences with a lower priority; returns the slot.

        `protected` slots are left alone.
        """
        sequence = self.waiting.first()
        if sequence is None:
            return None
        while not (self.slots.free and self._fits(sequence)):
            victim = self.slots.last(protected)
            if victim is None or self._sequence(victim).priority <= sequence.priority:
                return None
            self.preempt(victim)
        self.waiting.pop()
        return self._enter(sequence)

    def grow(self, short: np.ndarray) -> bool:
        """Gives each of these slots one block more. False: somebody lost the slot for that."""
        unharmed = True
        for slot in sorted(short.tolist(), key=self.rank):
            while self.slots.sequences[slot] is not None:
                blocks = self.pool.allocate(1)
                if blocks is not None:
                    self._extend(slot, blocks)
                    break
                victim = self.slots.last(())
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
            self.slots.free > 0
            or victim is None
            or self._sequence(victim).priority > first.priority
        )

    def blocks_short(self, where: np.ndarray, tokens: int) -> np.ndarray:
        """How many blocks each of these slots lacks for so many more tokens, int [n]."""
        size = self.pool.block_size
        needed = -(-(self.slots.computed[where] + tokens) // size)
        short: np.ndarray = np.maximum(needed - self.slots.capacity[where] // size, 0)
        return short

    def extend_by(self, where: np.ndarray, tokens: int) -> None:
        """Gives these slots the blocks for so many more tokens; there are enough."""
        short = self.blocks_short(where, tokens)
        for index in short.nonzero()[0].tolist():
            blocks = self.pool.allocate(int(short[index]))
            assert blocks is not None
            self._extend(int(where[index]), blocks)

    def preempt(self, slot: int) -> None:
        """Sends a sequence back to the queue; it will be computed again."""
        sequence = self.leave(slot)
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.add(sequence)

    def leave(self, slot: int) -> Sequence:
        """Takes slot and blocks away from a sequence."""
        sequence = self.slots.leave(slot)
        self.pool.release(sequence.blocks)
        sequence.blocks.clear()
        return sequence

    def publish(self, places: np.ndarray, known: np.ndarray) -> None:
        """Lets others use the blocks of these slots that are full of `known` tokens [n]."""
        slots, size = self.slots, self.pool.block_size
        full = np.minimum(known, slots.computed[places]) // size
        for index in (full > slots.published[places]).nonzero()[0].tolist():
            slot = int(places[index])
            sequence = self._sequence(slot)
            for place in range(sequence.published, int(full[index])):
                tokens = sequence.tokens[place * size : (place + 1) * size]
                sequence.node = self.pool.publish(sequence.node, tokens, sequence.blocks[place])
            sequence.published = slots.published[slot] = int(full[index])

    def rank(self, slot: int) -> tuple[int, int]:
        """Of the sequence there: the lower one goes first."""
        return self._sequence(slot).rank

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there are blocks for the text, and one for each other sequence to go on."""
        state = (sequence.number, self.pool.available, self.pool.known, self.slots.used)
        if state == self._refused:
            return False
        fits = self._has_blocks_for(sequence)
        self._refused = None if fits else state
        return fits

    def _has_blocks_for(self, sequence: Sequence) -> bool:
        known = self.pool.prefix(sequence.tokens, sequence.root)
        unheld = self.pool.count_unheld([entry.block for entry in known])
        reserve = self.slots.used
        free = self.pool.available - unheld
        return free >= self._needed(sequence) - len(known) + min(reserve, free // 8)

    def _needed(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self.pool.block_size)

    def _enter(self, sequence: Sequence) -> int:
        known = self.pool.prefix(sequence.tokens, sequence.root)
        blocks = [entry.block for entry in known]
        self.pool.hold(blocks)
        more = self.pool.allocate(self._needed(sequence) - len(blocks))
        assert more is not None
        computed = len(blocks) * self.pool.block_size
        sequence.blocks, sequence.published = blocks, len(known)
        sequence.node = known[-1].node if known else sequence.root
        if not sequence.preemptions:
            sequence.cached_tokens = computed
        self._counters.prefix_queries += len(sequence.tokens)
        self._counters.prefix_hits += computed
        slot = self.slots.enter(sequence, computed)
        self._extend(slot, more)
        return slot

    def _extend(self, slot: int, blocks: list[int]) -> None:
        sequence = self._sequence(slot)
        first = 0 if self.slots.capacity[slot] == 0 else len(sequence.blocks)
        sequence.blocks.extend(blocks)
        self.slots.show_blocks(slot, first, self.pool.block_size)

    def _sequence(self, slot: int) -> Sequence:
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        return sequence
