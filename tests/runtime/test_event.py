"""Events and the threads that wait in place of others."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.runtime.event import Event, Waiters

SECONDS = 20
FAILURE = RuntimeError("failed")


@pytest.mark.parametrize("error", [None, FAILURE])
def test_callbacks_before_and_after_see_the_outcome(error: Exception | None) -> None:
    event, seen = Event(), []
    event.on_ready(lambda outcome: seen.append(("before", outcome)))
    assert not event.is_ready()
    assert seen == []
    event.set(error)
    event.on_ready(lambda outcome: seen.append(("after", outcome)))
    assert event.is_ready()
    assert seen == [("before", error), ("after", error)]
    assert event.wait() is error
    assert event.error is error


def test_only_the_first_outcome_counts() -> None:
    event, seen = Event(), []
    event.on_ready(seen.append)
    event.set(FAILURE)
    event.set(None)
    assert seen == [FAILURE]
    assert event.error is FAILURE


def test_callback_may_use_the_event() -> None:
    event, seen = Event(), []

    def callback(error: BaseException | None) -> None:
        event.on_ready(seen.append)
        event.set()
        seen.append(event.wait())

    event.on_ready(callback)
    event.set(FAILURE)
    assert seen == [FAILURE, FAILURE]


@given(st.integers(1, 8), st.integers(1, 30))
def test_every_callback_runs_exactly_once_whoever_races(threads: int, callbacks: int) -> None:
    event = Event()
    runs = [[0] * callbacks for _ in range(threads)]
    barrier = threading.Barrier(threads + 2)

    def watch(counts: list[int]) -> None:
        barrier.wait(SECONDS)
        for index in range(callbacks):

            def count(error: BaseException | None, index: int = index) -> None:
                counts[index] += 1

            event.on_ready(count)

    def finish() -> None:
        barrier.wait(SECONDS)
        event.set()

    workers = [threading.Thread(target=watch, args=(counts,)) for counts in runs]
    workers += [threading.Thread(target=finish) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
    assert runs == [[1] * callbacks] * threads


def test_wait_blocks_until_set() -> None:
    event, outcomes = Event(), []
    waiter = threading.Thread(target=lambda: outcomes.append(event.wait()))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    event.set(FAILURE)
    waiter.join(SECONDS)
    assert outcomes == [FAILURE]


def test_waiting_jobs_never_block_others() -> None:
    """Each job waits for the next one: a pool of fixed size would stand still."""
    waiters, count = Waiters(), 200
    events = [Event() for _ in range(count + 1)]
    for index in range(count):

        def job(index: int = index) -> None:
            events[index + 1].wait()
            events[index].set()

        waiters.submit(job)
    assert not events[0].is_ready()
    waiters.submit(events[count].set)
    done = threading.Event()
    events[0].on_ready(lambda error: done.set())
    assert done.wait(SECONDS)


def test_idle_threads_are_used_again() -> None:
    waiters, names = Waiters(), set()
    for _ in range(10):
        event = Event()

        def job(event: Event = event) -> None:
            names.add(threading.current_thread().name)
            event.set()

        waiters.submit(job)
        event.wait()
        time.sleep(0.01)
    assert len(names) < 10
