"""Slots and blocks: who gets them, who gives them back."""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Items
from itertools import islice, zip_longest

import numpy as np

from launch.serving.cache.blocks import SCRATCH, BlockPool, Prefix
from launch.serving.cache.windows import KeyWindow, blocks_of_text
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Counters
from launch.serving.scheduler.waiting import Waiting


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

    def fill(self, where: np.ndarray, ends: np.ndarray) -> bool:
        """Gives those of these slots that lack any the blocks for texts of up to `ends` tokens [n],
        and takes away what no layer will look at again. False: somebody lost the slot for that."""
        unharmed = True
        lacking = self.lacking(where, ends)
        if not lacking.any():
            return True
        where, ends = where[lacking], ends[lacking]
        pairs = zip(where.tolist(), ends.tolist(), strict=True)
        for slot, end in sorted(pairs, key=lambda pair: self.rank(pair[0])):
            group = self.slots.group(slot)
            while self.slots.sequences[slot] is not None:
                self._drop_passed(slot)
                if self._extend_to(slot, -(-end // self._size)):
                    break
                victim = self.slots.last((), group)
                assert victim is not None
                self.preempt(victim)
                unharmed = False
        return unharmed

    def lacking(self, where: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which of these slots have no blocks yet for texts of up to `ends` tokens, bool [n]."""
        lack: np.ndarray = self.slots.capacity[where] < ends
        return lack

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

    def have_blocks(self, where: np.ndarray, tokens: int) -> bool:
        """Whether there are blocks for so many more tokens of each of these slots."""
        ends = -(-(self.slots.computed[where] + tokens) // self._size)
        short = np.maximum(ends[:, None] - self.slots.last_blocks[where], 0)
        short = short[:, 0] if short.shape[1] == 1 else short.sum(axis=1)
        needed = [0] * len(self.pools)
        for index in short.nonzero()[0].tolist():
            needed[self.slots.group(int(where[index]))] += int(short[index])
        return all(count <= pool.available for count, pool in zip(needed, self.pools, strict=True))

    def extend_by(self, where: np.ndarray, tokens: int) -> None:
        """Gives these slots the blocks for so many more tokens; there are enough."""
        ends = self.slots.computed[where] + tokens
        for index in self.lacking(where, ends).nonzero()[0].tolist():
            enough = self._extend_to(int(where[index]), -(-int(ends[index]) // self._size))
            assert enough

    def drop_passed(self, where: np.ndarray) -> None:
        """Takes the blocks away from these slots that no layer will look at again."""
        if self._partial:
            for slot in where.tolist():
                self._drop_passed(slot)

    def preempt(self, slot: int) -> None:
        """Sends a sequence back to the queue; it will be computed again."""
        sequence = self.leave(slot)
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self.waiting.add(sequence)

    def leave(self, slot: int) -> Sequence:
        """Takes slot and blocks away from a sequence."""
        sequence = self.slots.leave(slot)
        # The end of a text goes first: its beginning is of more use to others.
        places = reversed(list(zip_longest(*sequence.tables, fillvalue=SCRATCH)))
        blocks = (block for place in places for block in place if block != SCRATCH)
        self.pools[self.slots.group(slot)].release(blocks)
        sequence.tables.clear()
        return sequence

    def publish(self, places: np.ndarray, known: np.ndarray) -> None:
        """Lets others use the blocks of these slots that are full of `known` tokens [n]."""
        slots, size = self.slots, self._size
        full = np.minimum(known, slots.computed[places]) // size
        for index in (full > slots.published[places]).nonzero()[0].tolist():
            slot = int(places[index])
            sequence, pool = self._sequence(slot), self.pools[slots.group(slot)]
            keys = sequence.keys(int(full[index]), size)
            first = sequence.published
            for layers, table in enumerate(sequence.tables):
                pairs = zip(keys[first:], table[first : len(keys)], strict=True)
                pool.publish(layers, [pair for pair in pairs if pair[1] != SCRATCH])
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
            known = self._known(sequence, group).length
            return left[group] - known * self._size, self.slots.used_of(group)

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
        pool, known = self.pools[group], self._known(sequence, group)
        reserve = self.slots.used_of(group)
        free = pool.available - pool.count_unheld(known.blocks)
        return free >= sum(self._needed(sequence, known)) + min(reserve, free // 8)

    def _known(self, sequence: Sequence, group: int) -> Prefix:
        """What the cache of a group of slots holds of a text. Its last token is never among that:
        the model must see it to say what follows."""
        count = (len(sequence.tokens) - 1) // self._size
        return self.pools[group].prefix(sequence.keys(count, self._size))

    def _needed(self, sequence: Sequence, known: Prefix) -> list[int]:
        """How many blocks a sequence gets with its slot, for each group of layers: those of the
        whole text, or as many as it will hold at once."""
        length, pool = len(sequence.tokens), self.pools[0]
        held = blocks_of_text(self._windows, length, self._chunk, self._size)
        whole = -(-length // self._size)
        ends = (
            min(pool.first_seen(layers, known.length) + most, whole)
            for layers, most in enumerate(held)
        )
        return [max(end - known.length, 0) for end in ends]

    def _enter(self, sequence: Sequence, group: int) -> int:
        pool, known = self.pools[group], self._known(sequence, group)
        pool.hold(known.blocks)
        computed = known.length * self._size
        sequence.tables = [list(table) for table in known.tables]
        sequence.published = known.length
        if not sequence.preemptions:
            sequence.cached_tokens = computed
        self._counters.prefix_queries += len(sequence.tokens)
        self._counters.prefix_hits += computed
        slot = self.slots.enter(sequence, computed, group)
        for layers, count in enumerate(self._needed(sequence, known)):
            more = pool.allocate(count)
            assert more is not None
            sequence.tables[layers].extend(more)
            self.slots.first_blocks[slot, layers] = pool.first_seen(layers, known.length)
        self.slots.show_blocks(slot, self._size)
        return slot

    def _extend_to(self, slot: int, end: int) -> bool:
        """Gives a slot the blocks up to this place of its tables, if there are enough."""
        tables = self._sequence(slot).tables
        short = [max(end - len(table), 0) for table in tables]
        blocks = self.pools[self.slots.group(slot)].allocate(sum(short))
        if blocks is None:
            return False
        left = iter(blocks)
        for table, count in zip(tables, short, strict=True):
            table.extend(islice(left, count))
        self.slots.show_blocks(slot, self._size)
        return True

    def _drop_passed(self, slot: int) -> None:
        slots, pool = self.slots, self.pools[self.slots.group(slot)]
        for layers in self._partial:
            first = self._windows[layers].first(int(slots.computed[slot])) // self._size
            before = int(slots.first_blocks[slot, layers])
            if first > before:
                table = self._sequence(slot).tables[layers]
                pool.release(table[before:first])
                table[before:first] = [SCRATCH] * (first - before)
                slots.tables[slot, layers, before:first] = SCRATCH
                slots.first_blocks[slot, layers] = first

    def _sequence(self, slot: int) -> Sequence:
        sequence = self.slots.sequences[slot]
        assert sequence is not None
        return sequence
