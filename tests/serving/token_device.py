"""A device whose cache holds the tokens themselves: the next token is a function of all that a row
reads through its block table, so that a wrong block, slot or order gives a wrong answer."""

from collections.abc import Sequence

import numpy as np

from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.steps import Step

VOCABULARY = 11


def next_token(text: Sequence[int]) -> int:
    """The token after a text."""
    value = 7
    for token in text:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """The definition of an answer: one text, alone."""
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(prompt) :]


class TokenDevice:
    """Runs steps at once; what they drew is asked for later."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._slots = scheduler.slots
        self._size = scheduler.limits.block_size
        self._groups = scheduler.limits.groups
        self._blocks = scheduler.limits.blocks_of_group + 1
        self._cache = np.full((self._groups * self._blocks, self._size), -1)
        self._drawn = np.full(scheduler.limits.slots, -1)

    def run(self, step: Step) -> np.ndarray:
        """The tokens int32 [n] of the rows that draw one; with guesses [n, 1 + K], of which every
        third is wrong."""
        assert len(set(step.rows.tolist())) == len(step.slots) <= step.bucket.rows
        if step.speculative:
            return self._check(step)
        assert step.counts.max() <= step.bucket.tokens
        drawn = np.full(len(step.slots), -1, np.int32)
        texts = []
        for row, sequence in enumerate(step.sequences):
            start, count = int(step.starts[row]), int(step.counts[row])
            assert 0 < start + count <= step.bucket.blocks * self._size
            if step.on_device[row]:
                new = [int(self._drawn[step.slots[row]])]
            else:
                new = sequence.tokens[start : start + count]
            assert len(new) == count
            table = self._table(step, row)
            for position, token in enumerate(new, start):
                self._cache[table[position // self._size], position % self._size] = token
            texts.append((table, start + count))
        for row, (table, end) in enumerate(texts):  # all rows write before any reads
            if step.samples[row]:
                text = self._cache[table].reshape(-1)[:end].tolist()
                assert -1 not in text
                drawn[row] = self._drawn[step.slots[row]] = next_token(text)
        return drawn

    def _table(self, step: Step, row: int) -> np.ndarray:
        """The blocks of a row: those of the group that the row belongs to."""
        group = int(step.rows[row]) // (step.bucket.rows // self._groups)
        blocks = self._slots.tables[step.slots[row], : step.bucket.blocks]
        assert (blocks < self._blocks).all()
        table: np.ndarray = group * self._blocks + blocks
        return table

    def _check(self, step: Step) -> np.ndarray:
        drawn = np.full((len(step.slots), step.bucket.tokens), -1, np.int32)
        for row, sequence in enumerate(step.sequences):
            start, count = int(step.starts[row]), int(step.counts[row])
            assert start == len(sequence.tokens) - 1
            assert 0 < start + count <= step.bucket.blocks * self._size
            table = self._table(step, row)
            token = sequence.tokens[start]
            for place in range(count):
                position = start + place
                block = table[position // self._size]
                assert block % self._blocks
                self._cache[block, position % self._size] = token
                text = self._cache[table].reshape(-1)[: position + 1].tolist()
                drawn[row, place] = self._drawn[step.slots[row]] = next_token(text)
                guess = (drawn[row, place] + (position % 3 == 0)) % VOCABULARY
                if guess != drawn[row, place]:
                    # What follows a wrong guess is in the cache, too.
                    for later in range(position + 1, start + count):
                        block = table[later // self._size]
                        self._cache[block, later % self._size] = guess
                    break
                token = guess
        return drawn
