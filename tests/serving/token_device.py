"""A device whose cache holds the tokens themselves: the next token is a function of all that a row
reads through its block tables, so that a wrong block, slot or order gives a wrong answer."""

from collections.abc import Sequence

import numpy as np

from launch.serving.cache.windows import WHOLE, KeyWindow
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.steps import Step

VOCABULARY = 11


def next_token(seen: Sequence[Sequence[int]]) -> int:
    """The token after a text of which each group of layers sees so much."""
    value = 7
    for tokens in seen:
        for token in tokens:
            value = (value * 31 + token + 1) % 1_000_003
    return value % VOCABULARY


def answer(prompt: Sequence[int], count: int, windows: Sequence[KeyWindow] = (WHOLE,)) -> list[int]:
    """The definition of an answer: one text, alone."""
    text = list(prompt)
    for _ in range(count):
        text.append(next_token([text[window.first(len(text) - 1) :] for window in windows]))
    return text[len(prompt) :]


class TokenDevice:
    """Runs steps at once; what they drew is asked for later."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._slots = scheduler.slots
        self._size = scheduler.limits.block_size
        self._windows = scheduler.limits.windows
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
        for row, sequence in enumerate(step.sequences):
            start, count = int(step.starts[row]), int(step.counts[row])
            assert 0 < start + count <= step.bucket.blocks * self._size
            if step.on_device[row]:
                new = [int(self._drawn[step.slots[row]])]
            else:
                new = sequence.tokens[start : start + count]
            assert len(new) == count
            for position, token in enumerate(new, start):
                self._write(step, row, position, token)
        for row in range(len(step.slots)):  # all rows write before any reads
            # Every new token looks back as far as its layers see.
            for position in range(int(step.starts[row]), int(step.starts[row] + step.counts[row])):
                following = self._next_token(step, row, position)
            if step.samples[row]:
                drawn[row] = self._drawn[step.slots[row]] = following
        return drawn

    def _tables(self, step: Step, row: int) -> np.ndarray:
        """The blocks of a row for each group of layers: those of the group of slots that the row
        belongs to."""
        group = int(step.rows[row]) // (step.bucket.rows // self._groups)
        blocks = self._slots.tables[step.slots[row], :, : step.bucket.blocks]
        assert (blocks < self._blocks).all()
        tables: np.ndarray = group * self._blocks + blocks
        return tables

    def _write(self, step: Step, row: int, position: int, token: int) -> None:
        blocks = self._tables(step, row)[:, position // self._size]
        assert (blocks % self._blocks).all(), "what is written to the scratch block is lost"
        assert len(set(blocks.tolist())) == len(blocks), "layers of two groups share a block"
        self._cache[blocks, position % self._size] = token

    def _next_token(self, step: Step, row: int, position: int) -> int:
        """What follows the token at this position."""
        seen = []
        for window, table in zip(self._windows, self._tables(step, row), strict=True):
            first = window.first(position)
            assert (table[first // self._size : position // self._size + 1] % self._blocks).all()
            text = self._cache[table].reshape(-1)[first : position + 1].tolist()
            assert -1 not in text
            seen.append(text)
        return next_token(seen)

    def _check(self, step: Step) -> np.ndarray:
        drawn = np.full((len(step.slots), step.bucket.tokens), -1, np.int32)
        for row, sequence in enumerate(step.sequences):
            start, count = int(step.starts[row]), int(step.counts[row])
            assert start == len(sequence.tokens) - 1
            assert 0 < start + count <= step.bucket.blocks * self._size
            token = sequence.tokens[start]
            for place in range(count):
                position = start + place
                self._write(step, row, position, token)
                drawn[row, place] = self._next_token(step, row, position)
                self._drawn[step.slots[row]] = drawn[row, place]
                guess = (drawn[row, place] + (position % 3 == 0)) % VOCABULARY
                if guess != drawn[row, place]:
                    # What follows a wrong guess is in the cache, too.
                    for later in range(position + 1, start + count):
                        self._write(step, row, later, guess)
                    break
                token = guess
        return drawn
