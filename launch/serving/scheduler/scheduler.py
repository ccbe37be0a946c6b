"""Continuous batching over a paged cache, as a state machine.

`submit` takes requests, `plan` gives the next step for the device, `complete` takes the tokens that
a step has made. Steps may be planned before the tokens of earlier ones are known: such a step reads
its tokens on the device. All steps must run in the order in which they were planned.

Policy: lower priority numbers first, then clients in turn (see `waiting`), then order of arrival; a
client with fewer slots than another gets one of its. Prompts are computed in chunks, and
never in one step with sequences that decode; of the two, prompts go first, but after
`prefills_per_decode` of them the others get a turn. Where blocks are short, the sequence of the
lowest rank gives its own back, and is computed again later (preemption by recomputation).
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from launch.serving.cache.blocks import SCRATCH, BlockPool, Prefix
from launch.serving.cache.prefixes import Key, text_keys
from launch.serving.requests import FinishReason
from launch.serving.scheduler.buckets import Bucket
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.placement import Placement
from launch.serving.scheduler.sequences import Sequence
from launch.serving.scheduler.slots import Slots
from launch.serving.scheduler.steps import Counters, Progress, Step
from launch.serving.scheduler.waiting import Waiting


class _Steady(NamedTuple):
    """A decoding step of all sequences that have a slot, which can be repeated."""

    step: Step
    changes: int  # `Slots.changes` when it was planned
    left: int  # how many more such steps there can be


class Scheduler:
    """A state machine of requests, steps and their tokens, as the module describes it."""

    def __init__(
        self,
        limits: SchedulerLimits,
        worth_guessing: Callable[[Sequence], bool] = lambda sequence: True,
    ) -> None:
        self.limits = limits
        self._worth_guessing = worth_guessing
        self._guessed = False  # the last step of decoding was one with guesses
        self.counters = Counters(accepted_by_position=(0,) * limits.guesses)
        self.slots = Slots(
            limits.slots,
            limits.buckets.blocks[-1],
            limits.block_size,
            limits.groups,
            len(limits.windows),
        )
        self.pools = [
            BlockPool(
                limits.blocks_of_group,
                limits.block_size,
                reuse=limits.prefix_caching,
                windows=limits.windows,
            )
            for _ in range(limits.groups)
        ]
        self._waiting = Waiting()
        self._placement = Placement(
            self.slots,
            self.pools,
            self._waiting,
            self.counters,
            windows=limits.windows,
            chunk=max(limits.buckets.chunk, 1 + limits.guesses),
        )
        self._arrivals = 0
        self._prefills = 0  # in a row
        self._steady: _Steady | None = None

    @property
    def waiting(self) -> int:
        """The number of sequences without a place in the batch."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of sequences with a place in the batch."""
        return self.slots.used

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.waiting and not self.running

    def submit(self, sequence: Sequence) -> None:
        """Queues a new sequence. Raises RequestError for one that could never be
        computed."""
        self.limits.check(len(sequence.tokens), sequence.limit - len(sequence.tokens))
        sequence.number = self._arrivals
        self._arrivals += 1
        self.counters.prompt_tokens += len(sequence.tokens)
        self._waiting.enqueue(sequence)

    def known(self, text: Items[int], root: Key) -> Prefix:
        """Returns the prefix of a text below a root that the cache holds, in the group of slots
        that has most of it."""
        keys = self._keys(text, root)
        return max((pool.prefix(keys) for pool in self.pools), key=lambda prefix: prefix.length)

    def adopt(self, text: Items[int], root: Key, prefix: Prefix) -> list[int] | None:
        """Blocks that are taken to hold from now on what those of `prefix` hold in another
        scheduler, in the order of `Prefix.blocks`; None if there is no room. With one group of
        slots."""
        (pool,) = self.pools
        count = len(prefix.blocks)
        if count > pool.available:
            return None
        blocks = pool.take(count)
        keys, left = self._keys(text, root), iter(blocks)
        for group, table in enumerate(prefix.tables):
            ours = [SCRATCH if theirs == SCRATCH else next(left) for theirs in table]
            pool.publish(group, keys[: prefix.length], ours)
        pool.release(reversed(blocks))
        return blocks

    def _keys(self, text: Items[int], root: Key) -> list[Key]:
        """Keys of a text's blocks that others may have computed: its last token is to be seen."""
        return text_keys(text[:-1], self.limits.block_size, root)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Takes a sequence out, wherever it is; what is under way for it is ignored."""
        if sequence.finished is not None:
            return
        sequence.finished = reason
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._placement.leave(sequence.slot)

    def plan(self) -> Step | None:
        """The next step; None if there is nothing to do before a step completes or a request
        comes."""
        return self._plan_again() or self._plan_anew()

    def _plan_again(self) -> Step | None:
        """The decoding step planned last, one token further; None if anything else is to be done.
        Usually nothing else is, and this takes a third of the time of planning anew."""
        steady, slots = self._steady, self.slots
        if steady is None or self.waiting or slots.changes != steady.changes or not steady.left:
            return None
        last = steady.step
        where = last.slots
        starts = slots.computed[where]
        ends = starts + 1
        if not self._placement.fill(where, ends):
            return None
        on_device = slots.pending[where] > 0
        step = last._replace(starts=starts, on_device=on_device, again=True)
        slots.computed[where] = ends
        slots.length[where] += 1
        slots.pending[where] += 1
        self.counters.decode_steps += 1
        self._steady = _Steady(step, steady.changes, steady.left - 1)
        return step

    def _plan_anew(self) -> Step | None:
        self._steady = None
        ready = self.slots.decodable()
        if self._prefills < self.limits.prefills_per_decode or not ready.size:
            before = self.counters.preemptions
            step = self._plan_prefill()
            if step is not None:
                self._prefills += 1
                return step
            if self.counters.preemptions != before:
                ready = self.slots.decodable()
        self._prefills = 0
        return self._plan_decode(ready) or self._plan_prefill()

    def complete(self, step: Step, tokens: np.ndarray) -> Progress:
        """Takes the tokens int32 [n] that the rows of a step drew; what rows that drew nothing
        have there does not matter. Of a step with guesses they are [n, 1 + guesses], and negative
        where guesses were wrong. Sequences that ended or left in the meantime are ignored."""
        slots = self.slots
        live = slots.serial[step.slots] == step.serials
        live &= step.samples
        rows = live.nonzero()[0]
        drawn = tokens.reshape(len(step.slots), -1)
        places, sequences = step.slots, step.sequences
        if len(rows) < len(places):
            places, drawn = places[rows], drawn[rows]
            sequences = [sequences[row] for row in rows.tolist()]
        slots.pending[places] -= 1
        new = drawn.tolist()
        if step.speculative:
            new = self._settle(step.counts[rows], places, new)
        self.counters.generation_tokens += sum(map(len, new))
        for sequence, more in zip(sequences, new, strict=True):
            sequence.tokens.extend(more)
            if step.speculative:
                sequence.patience.note(len(more) - 1, len(sequence.tokens))
        finished: dict[int, FinishReason] = {}
        known = slots.length[places] - slots.pending[places]
        for index in (known >= slots.limit[places]).nonzero()[0].tolist():
            finished[index] = "length"
        for index in slots.has_stops[places].nonzero()[0].tolist():
            if _cut(new[index], sequences[index]):
                finished[index] = "stop"
        for index, reason in finished.items():
            self.end(sequences[index], reason)
        return Progress(rows, sequences, new, finished)

    def repeatable(self, step: Step) -> int:
        """Counts how often this step of decoding, planned last, could be planned and completed
        again before anything but one more token of each sequence happens, if no request comes and
        no token ends a text."""
        slots, where = self.slots, step.slots
        ready = slots.decodable()
        if (
            step.speculative
            or not step.is_decode
            or len(ready) != len(where)
            or (slots.serial[where] != step.serials).any()
            or (ready != where).any()
            or slots.prefilling.any()
            or self._placement.could_admit()
        ):
            return 0
        reach = step.bucket.blocks * self.limits.block_size
        times = int((slots.limit[where] - slots.length[where]).min())
        times = min(times, reach - int(slots.computed[where].max()))
        while times and not self._placement.have_blocks(where, times):
            times //= 2
        return times

    def repeat(self, step: Step, times: int) -> None:
        """Does what planning and completing this step so often would do; the tokens are zeros."""
        slots, where = self.slots, step.slots
        self._steady = None
        self._placement.extend_by(where, times)
        slots.computed[where] += times
        slots.length[where] += times
        new = [0] * times
        for sequence in step.sequences:
            sequence.tokens.extend(new)
        self.counters.decode_steps += times
        self.counters.generation_tokens += times * len(where)
        self._placement.drop_passed(where)

    def _settle(
        self, counts: np.ndarray, places: np.ndarray, drawn: list[list[int]]
    ) -> list[list[int]]:
        """The tokens of rows with guesses, and their slots as if all had been planned."""
        right = [[token for token in row if token >= 0] for row in drawn]
        more = np.array([len(row) - 1 for row in right], np.int32)
        self.slots.computed[places] += more
        self.slots.length[places] += more
        self.counters.drafts += int((counts > 1).sum())
        self.counters.draft_tokens += int((counts - 1).sum())
        self.counters.accepted_tokens += int(more.sum())
        self.counters.accepted_by_position = tuple(
            before + int((more > position).sum())
            for position, before in enumerate(self.counters.accepted_by_position)
        )
        return right

    def _plan_decode(self, ready: np.ndarray) -> Step | None:
        slots = self.slots
        ends = slots.computed[ready] + 1
        if not self._placement.fill(ready, ends):
            ready = slots.decodable()  # some have lost their places
            ends = slots.computed[ready] + 1
        if not ready.size:
            return None
        self.counters.decode_steps += 1
        if self.limits.guesses:
            ready, guesses = self._choose_kind(ready)
            if guesses is not None:
                return self._verify(ready, guesses)
            ends = slots.computed[ready] + 1
        bucket = self.limits.buckets.decode(self._rows_for(ready), self._blocks(ends))
        step = self._step(bucket, ready, np.ones(len(ready), np.int32))
        is_all = len(ready) == slots.used and not self.limits.guesses
        if is_all and not slots.one_by_one[ready].any():
            self._steady = _Steady(step, slots.changes, self._steps_left(step))
        return step

    def _steps_left(self, step: Step) -> int:
        """Counts the further steps like this one before a text reaches its limit or the
        bucket's."""
        slots, where = self.slots, step.slots
        reach = step.bucket.blocks * self.limits.block_size - int(slots.computed[where].max())
        return min(reach, int((slots.limit[where] - slots.length[where]).min()))

    def _choose_kind(self, ready: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The slots of the next step, and how many guesses each has; None if there are none. Steps
        with and without take turns where there are sequences of both kinds."""
        slots = self.slots
        guessing = ready[slots.speculates[ready]]
        ends = slots.computed[guessing] + 1 + self.limits.guesses
        self._placement.widen(guessing, np.minimum(ends, slots.limit[guessing]))
        room = np.minimum(
            slots.capacity[ready] - slots.computed[ready],
            slots.limit[ready] - slots.length[ready],
        )
        guesses = np.minimum(room - 1, self.limits.guesses).astype(np.int32)
        can = slots.speculates[ready] & (guesses > 0)
        can[can] = [self._can_guess(sequence) for sequence in slots.sequences(ready[can])]
        self._guessed = bool(can.any() and not (self._guessed and not can.all()))
        if self._guessed:
            return ready[can], guesses[can]
        return (ready if not can.any() else ready[~can]), None

    def _can_guess(self, sequence: Sequence) -> bool:
        return sequence.patience.resumes <= len(sequence.tokens) and self._worth_guessing(sequence)

    def _verify(self, ready: np.ndarray, guesses: np.ndarray) -> Step:
        blocks = self._blocks(self.slots.computed[ready] + 1 + guesses)
        bucket = self.limits.buckets.verify(self._rows_for(ready), self.limits.guesses, blocks)
        return self._step(bucket, ready, 1 + guesses, speculative=True)

    def _plan_prefill(self) -> Step | None:
        """Pieces of the prompts that go first: of those begun before, then of new ones."""
        slots, buckets = self.slots, self.limits.buckets
        if not (self.waiting or np.count_nonzero(slots.prefilling)):
            return None
        begun = sorted(slots.prefilling.nonzero()[0].tolist(), key=self._placement.rank)
        chosen: list[int] = []
        taken = [0] * slots.groups
        most = 1  # of a group
        while open_groups := [group for group, count in enumerate(taken) if count < most]:
            slot = begun.pop(0) if begun else self._placement.admit(chosen, open_groups)
            if slot is None:
                break
            group = slots.group(slot)
            if group not in open_groups:
                continue
            chosen.append(slot)
            taken[group] += 1
            if len(chosen) == 1:  # the first one decides how wide the step is
                left = int(slots.length[slot] - slots.computed[slot])
                width = buckets.prefill(1, min(left, buckets.chunk), 1).tokens
                most = buckets.rows_of(width) // slots.groups
        if not chosen:
            return None
        where = np.array(chosen if slots.groups == 1 else sorted(chosen))
        counts = self._counts(where, width)
        where, counts = where[counts > 0], counts[counts > 0]
        if not self._placement.fill(where, slots.computed[where] + counts):
            left = slots.limit[where] > 0  # some have lost their places
            where, counts = where[left], counts[left]
            if not where.size:
                return None
        self.counters.prefill_steps += 1
        blocks = self._blocks(slots.computed[where] + counts)
        return self._step(buckets.prefill(self._rows_for(where), width, blocks), where, counts)

    def _counts(self, where: np.ndarray, width: int) -> np.ndarray:
        """How many tokens of prompts a step of that width computes in each of the slots."""
        slots, units = self.slots, self.limits.units
        counts = np.minimum(slots.length[where] - slots.computed[where], width)
        if units is None:
            return counts
        starts, sequences = slots.computed[where], slots.sequences(where)
        texts = zip(sequences, starts.tolist(), counts.tolist(), strict=True)
        whole = [units.count_whole(text.tokens, start, count) for text, start, count in texts]
        return np.array(whole, counts.dtype)

    def _rows_for(self, slots: np.ndarray) -> int:
        """Counts the rows that a step of these slots needs at least."""
        return self.slots.groups * self.slots.most_of_a_group(slots)

    def _blocks(self, lengths: np.ndarray) -> int:
        """Counts the blocks that the longest of these texts fills."""
        return -(-int(lengths.max()) // self.limits.block_size)

    def _step(
        self, bucket: Bucket, where: np.ndarray, counts: np.ndarray, *, speculative: bool = False
    ) -> Step:
        """The step that computes `counts` more tokens of the given slots; from here on they are
        taken as computed, but for guesses."""
        slots = self.slots
        starts = slots.computed[where]
        certain = np.ones_like(counts) if speculative else counts
        ends = starts + certain
        samples = ends == slots.length[where]
        step = Step(
            bucket=bucket,
            rows=slots.rows(where, bucket.rows),
            sequences=slots.sequences(where),
            slots=where,
            serials=slots.serial[where],
            numbers=slots.number[where],
            starts=starts,
            counts=counts,
            on_device=slots.pending[where] > 0,
            samples=samples,
            speculative=speculative,
        )
        slots.computed[where] = ends
        drawn = where if step.is_decode else where[samples]
        slots.length[drawn] += 1
        slots.pending[drawn] += 1
        if not step.is_decode:
            left = slots.length[where] - ends
            slots.prefilling[where] = ~samples & (left > 1)
            self._placement.publish(where)
        return step


def _cut(new: list[int], sequence: Sequence) -> bool:
    """Whether a stop token is among the new ones of a sequence; takes away what follows it."""
    for index, token in enumerate(new):
        if token in sequence.stop_tokens:
            behind = len(new) - index - 1
            if behind:
                del new[-behind:], sequence.tokens[-behind:]
            return True
    return False
