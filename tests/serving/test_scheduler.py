"""The scheduler on a device of tokens: whatever it plans, each answer is the answer alone."""

import sys
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.serving.cache.windows import WHOLE, KeyWindow
from launch.serving.errors import RequestError, ServingError
from launch.serving.scheduler.buckets import Buckets, powers
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.scheduler import Scheduler
from launch.serving.scheduler.sequences import Sequence
from tests.serving.token_device import VOCABULARY, TokenDevice, answer

BUCKETS = Buckets(
    decode_rows=(1, 3, 6),
    prefill_rows=(1, 2),
    prefill_tokens=(2, 8),
    blocks=(2, 5, 12),
    batched_tokens=16,
)
LIMITS = SchedulerLimits(context=24, blocks=16, block_size=2, buckets=BUCKETS)


def sequence(prompt: list[int], count: int, **fields: object) -> Sequence:
    return Sequence(str(id(prompt)), list(prompt), len(prompt) + count, **fields)  # type: ignore[arg-type]


def held(scheduler: Scheduler) -> int:
    return sum(pool.held for pool in scheduler.pools)


def in_groups(buckets: Buckets, groups: int) -> Buckets:
    """With as many rows for each group as there are in all."""
    return replace(
        buckets,
        decode_rows=tuple(groups * rows for rows in buckets.decode_rows),
        prefill_rows=tuple(groups * rows for rows in buckets.prefill_rows),
        batched_tokens=groups * buckets.batched_tokens,
    )


def drive(scheduler: Scheduler, depth: int = 1, device: TokenDevice | None = None) -> None:
    """Runs all that was submitted, up to `depth` steps ahead of what the host knows."""
    device = device or TokenDevice(scheduler)
    under_way: deque = deque()
    while not scheduler.is_idle:
        step = scheduler.plan() if len(under_way) < depth else None
        if step is not None:
            under_way.append((step, device.run(step)))
            continue
        assert under_way, "there is work, nothing is under way, and nothing is planned"
        scheduler.complete(*under_way.popleft())


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # few tokens: prefixes meet
requests = st.tuples(
    prompts, st.integers(1, 10), st.integers(0, 2), st.booleans(), st.sampled_from("abc")
)
partial = st.builds(KeyWindow, st.integers(1, 9), st.booleans())
windows = st.lists(st.one_of(st.just(WHOLE), partial), min_size=1, max_size=3).map(tuple)


def most_blocks(limits: SchedulerLimits, length: int) -> int:
    """How many blocks a text may hold: of layers that see a window those alone that it and a piece
    of a prompt touch."""
    size, blocks = limits.block_size, 0
    filled = -(-limits.buckets.chunk // size)
    for window in limits.windows:
        whole = -(-(length + limits.guesses) // size)
        partial = whole if window.size is None else -(-(window.size - 1) // size) + filled + 1
        blocks += min(whole, partial)
    return blocks


@settings(max_examples=200)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 6), requests), min_size=1, max_size=14),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 30)), max_size=3),
    blocks=st.integers(12, 40),
    depth=st.integers(1, 3),
    prefix_caching=st.booleans(),
    patience=st.integers(1, 4),
    guesses=st.integers(0, 4),
    groups=st.integers(1, 3),
    windows=windows,
)
def test_each_answer_is_the_answer_alone(
    arrivals: list,
    cancels: list,
    blocks: int,
    depth: int,
    prefix_caching: bool,
    patience: int,
    guesses: int,
    groups: int,
    windows: tuple[KeyWindow, ...],
) -> None:
    blocks *= len(windows)
    scheduler = Scheduler(
        replace(
            LIMITS,
            blocks=groups * blocks,
            windows=windows,
            buckets=in_groups(BUCKETS, groups),
            groups=groups,
            prefix_caching=prefix_caching,
            prefills_per_decode=patience,
            guesses=guesses,
        )
    )
    device = TokenDevice(scheduler)
    waits = [wait for wait, _ in arrivals]
    expected = [answer(prompt, count, windows) for _, (prompt, count, *_) in arrivals]
    sequences = [
        sequence(
            prompt,
            count,
            priority=priority,
            one_by_one=one_by_one,
            speculates=one_by_one,
            client=client,
        )
        for _, (prompt, count, priority, one_by_one, client) in arrivals
    ]
    coming = deque(zip(waits, sequences, strict=True))
    leaving = {when: which for which, when in cancels if which < len(sequences)}
    under_way: deque = deque()
    tick = 0
    while coming or under_way or not scheduler.is_idle:
        tick += 1
        if tick in leaving and sequences[leaving[tick]].finished is None:
            if any(each is sequences[leaving[tick]] for _, each in coming):
                coming = deque(each for each in coming if each[1] is not sequences[leaving[tick]])
            scheduler.end(sequences[leaving[tick]], "cancelled")
        while coming and coming[0][0] <= tick % 7:
            scheduler.submit(coming.popleft()[1])
        step = scheduler.plan() if len(under_way) < depth else None
        if step is not None:
            under_way.append((step, device.run(step)))
        elif under_way:
            scheduler.complete(*under_way.popleft())
        assert all(pool.held <= blocks for pool in scheduler.pools)
        slots = scheduler.slots
        for slot in slots.limit.nonzero()[0].tolist():
            length = int(slots.length[slot]) + guesses * int(slots.speculates[slot])
            most = most_blocks(scheduler.limits, min(length, int(slots.limit[slot])))
            assert len(slots.held_blocks(slot)) <= most
    for each, tokens in zip(sequences, expected, strict=True):
        if each.finished == "cancelled":
            assert list(each.answer) == tokens[: len(each.answer)]
        else:
            assert (list(each.answer), each.finished) == (tokens, "length")
    assert (held(scheduler), scheduler.slots.used) == (0, 0)
    assert not +scheduler.slots.held


def test_a_common_beginning_is_computed_once() -> None:
    prompt = [1, 0, 1, 1, 0, 0, 1, 0, 1]
    scheduler = Scheduler(LIMITS)
    device = TokenDevice(scheduler)
    for end in ([1], [0], [0, 1]):
        scheduler.submit(sequence(prompt + end, 2))
        drive(scheduler, device=device)
    # Eight tokens are whole blocks; the last prompt finds that of the second, too.
    assert scheduler.counters.prefix_hits == 8 + 10
    assert scheduler.counters.prefix_queries == 10 + 10 + 11


def test_an_answer_under_way_is_a_beginning_for_others() -> None:
    scheduler = Scheduler(LIMITS)
    device = TokenDevice(scheduler)
    first = sequence([1, 0, 1], 12)
    scheduler.submit(first)
    while len(first.tokens) < 10:
        step = scheduler.plan()
        assert step is not None
        scheduler.complete(step, device.run(step))
    second = sequence([*first.tokens, 1], 2)
    scheduler.submit(second)
    drive(scheduler, device=device)
    assert second.cached_tokens == 8  # the tenth token has not been computed
    assert list(second.answer) == answer(second.tokens[:11], 2)


def test_layers_that_see_a_window_give_their_blocks_back() -> None:
    """Three groups of layers of blocks of two tokens: one sees all, two the last four tokens."""
    limits = replace(LIMITS, blocks=40, windows=(WHOLE, KeyWindow(4), KeyWindow(4, is_chunk=True)))
    scheduler = Scheduler(limits)
    prompt = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1]
    first = sequence(prompt, 8)
    scheduler.submit(first)
    device, most = TokenDevice(scheduler), 0
    while not scheduler.is_idle:
        step = scheduler.plan()
        assert step is not None
        scheduler.complete(step, device.run(step))
        counts = np.count_nonzero(scheduler.slots.tables[0], axis=1).tolist()
        most = max([most, *counts[1:]])
        if len(first.tokens) == 21:
            # The last block was taken for position 18, which looks back to 15, or to 16.
            assert counts == [10, 3, 2]
    assert most == 2 + 4  # the window, and a piece of the prompt
    assert list(first.answer) == answer(prompt, 8, limits.windows)
    # What was given back is known until its place is needed.
    again = sequence([*prompt[:9], 1], 2)
    scheduler.submit(again)
    drive(scheduler, device=device)
    assert again.cached_tokens == 8
    assert list(again.answer) == answer([*prompt[:9], 1], 2, limits.windows)
    # A text of 24 tokens holds twelve blocks where all is seen, and six where a window is.
    assert [replace(limits, blocks=count).longest for count in (23, 24)] == [22, 24]
    assert replace(LIMITS, blocks=6, windows=(KeyWindow(4),)).longest == 24


def test_a_stop_token_ends_an_answer_with_steps_under_way() -> None:
    prompt = [3, 1, 4]
    alone = answer(prompt, 12)
    stop = alone[4]
    expected = alone[: alone.index(stop) + 1]
    for depth in (1, 2, 3):
        scheduler = Scheduler(LIMITS)
        each = sequence(prompt, 12, stop_tokens={stop})
        scheduler.submit(each)
        drive(scheduler, depth)
        assert (list(each.answer), each.finished) == (expected, "stop")
        assert held(scheduler) == 0


def test_right_guesses_save_steps_and_a_stop_token_ends_among_them() -> None:
    prompt = [3, 1, 4]
    alone = answer(prompt, 16)
    plain, quick = Scheduler(LIMITS), Scheduler(replace(LIMITS, guesses=3))
    for scheduler in (plain, quick):
        each = sequence(prompt, 16, one_by_one=True, speculates=True)
        scheduler.submit(each)
        drive(scheduler)
        assert list(each.answer) == alone
    assert quick.counters.decode_steps < 0.7 * plain.counters.decode_steps
    assert 0 < quick.counters.accepted_tokens < quick.counters.draft_tokens
    by_position = quick.counters.accepted_by_position
    assert len(by_position) == 3
    assert sum(by_position) == quick.counters.accepted_tokens
    assert list(by_position) == sorted(by_position, reverse=True)
    for stop in set(alone):
        scheduler = Scheduler(replace(LIMITS, guesses=3))
        each = sequence(prompt, 16, stop_tokens={stop}, one_by_one=True, speculates=True)
        scheduler.submit(each)
        drive(scheduler)
        assert (list(each.answer), each.finished) == (alone[: alone.index(stop) + 1], "stop")


def test_short_memory_preempts_the_last_and_gives_all_answers() -> None:
    scheduler = Scheduler(replace(LIMITS, blocks=12, prefix_caching=False))
    sequences = [sequence([index, 2], 18) for index in range(4)]
    for each in sequences:
        scheduler.submit(each)
    drive(scheduler, depth=2)
    assert [list(each.answer) for each in sequences] == [answer([i, 2], 18) for i in range(4)]
    assert sequences[0].preemptions == 0
    assert scheduler.counters.preemptions > 0


def test_a_higher_priority_takes_the_place_of_a_lower_one() -> None:
    scheduler = Scheduler(replace(LIMITS, buckets=replace(BUCKETS, decode_rows=(1,))))
    low, high = sequence([1, 2, 3], 10, priority=5), sequence([4, 5], 3, priority=0)
    device = TokenDevice(scheduler)
    scheduler.submit(low)
    for _ in range(4):
        step = scheduler.plan()
        assert step is not None
        scheduler.complete(step, device.run(step))
    scheduler.submit(high)
    step = scheduler.plan()
    assert step is not None
    assert step.sequences == [high]
    assert low.slot is None


@settings(max_examples=50)
@given(queued=st.integers(1, 60), count=st.integers(2, 12), own=st.integers(1, 4))
def test_a_client_with_little_waits_for_little(queued: int, count: int, own: int) -> None:
    """However much another one has queued: a step for the prompt and one for each token, between
    which there are the prompts of others that get a slot."""
    scheduler = Scheduler(LIMITS)
    device = TokenDevice(scheduler)
    for index in range(queued):
        scheduler.submit(sequence([index % VOCABULARY], count, client="much"))
    for _ in range(2 * LIMITS.slots):
        if (step := scheduler.plan()) is not None:
            scheduler.complete(step, device.run(step))
    little = sequence([1, 2], own, client="little")
    scheduler.submit(little)
    steps = 0
    while little.finished is None:
        step = scheduler.plan()
        assert step is not None
        scheduler.complete(step, device.run(step))
        steps += 1
    assert steps <= (1 + own) * (1 + LIMITS.prefills_per_decode)
    drive(scheduler, device=device)


@settings(max_examples=50)
@given(
    counts=st.lists(st.integers(2, 12), min_size=2, max_size=3),
    shares=st.lists(st.integers(10, 60), min_size=3, max_size=3),
)
def test_clients_get_equal_shares(counts: list[int], shares: list[int]) -> None:
    """Of tokens, while all of them have sequences that wait, whatever these are like."""
    scheduler = Scheduler(LIMITS)
    device = TokenDevice(scheduler)
    own: dict[str, list[Sequence]] = {
        str(client): [sequence([1], count, client=str(client)) for _ in range(share)]
        for client, (count, share) in enumerate(zip(counts, shares, strict=False))
    }
    for sequences in own.values():
        for each in sequences:
            scheduler.submit(each)
    most = 2 * LIMITS.slots * (1 + max(counts))
    while (step := scheduler.plan()) is not None:
        scheduler.complete(step, device.run(step))
        waiting = [
            any(
                each.number >= 0 and each.slot is None and each.finished is None
                for each in sequences
            )
            for sequences in own.values()
        ]
        got = [sum(len(each.answer) for each in sequences) for sequences in own.values()]
        assert not all(waiting) or max(got) - min(got) <= most


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 3, "empty"),
        ([1], 0, "at least 1"),
        ([1] * 20, 5, "25 together, but the maximum context length is 24"),
    ],
)
def test_what_could_never_be_computed_is_refused(
    prompt: list[int], count: int, message: str
) -> None:
    scheduler = Scheduler(LIMITS)
    with pytest.raises(RequestError, match=message):
        scheduler.submit(sequence(prompt, count))
    assert scheduler.is_idle


def test_buckets() -> None:
    assert powers(1, 16, 4) == (1, 4, 16)
    assert powers(16, 40, 2) == (16, 32, 40)
    assert BUCKETS.decode(2, 3) == (3, 1, 5)
    assert BUCKETS.prefill(2, 3, 1) == (2, 8, 2)
    assert all(rows * tokens <= 16 for rows, tokens, _ in BUCKETS)
    with pytest.raises(ServingError, match="ascending"):
        replace(BUCKETS, blocks=(4, 2))
    with pytest.raises(ServingError, match="max_num_batched_tokens"):
        replace(BUCKETS, batched_tokens=4)
    with pytest.raises(ServingError, match="may have 99"):
        replace(LIMITS, context=99)


def test_planning_is_quick_for_many() -> None:
    """A plan of 256 sequences touches arrays, not sequences: no more Python calls than for one."""

    def calls(rows: int) -> int:
        buckets = Buckets((rows,), (1,), (8,), (64,), 8)
        scheduler = Scheduler(SchedulerLimits(2048, 4096, 32, buckets, prefills_per_decode=10_000))
        for index in range(rows):
            scheduler.submit(sequence([index % VOCABULARY], 20))
        step = scheduler.plan()
        while step is None or not step.is_decode or len(step.slots) < rows:
            assert step is not None
            scheduler.complete(step, np.zeros(len(step.slots), np.int32))
            step = scheduler.plan()
        scheduler.complete(step, np.zeros(len(step.slots), np.int32))
        count = 0

        def hook(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(hook)
        try:
            scheduler.plan()
        finally:
            sys.setprofile(None)
        return count

    assert calls(256) <= calls(1) + 5
