"""Tokens of short steps go to their clients together, and none is lost or late."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import SimpleQueue

import pytest

from launch.serving.outbox import Outbox
from launch.serving.requests import FinishReason, Logprobs, Output, Times

Sent = SimpleQueue[Sequence[Output]]
NEVER = 1e6  # seconds


@contextmanager
def outbox(interval: float) -> Iterator[tuple[Callable[[Sequence[Output]], None], Sent]]:
    """Where a step's outputs are put, and what is sent."""
    sent = Sent()
    with closing(Outbox(sent.put, interval)) as box:
        yield box.put, sent


def token(
    name: str, number: int, finished: FinishReason | None = None, *, first: bool = False
) -> Output:
    """One token of an answer."""
    times = Times(1.0, number, number)
    entry = Logprobs(-float(number), [number], [-float(number)])
    return Output(
        name, (number,), [entry], finished, 16, times=times, waited=0.5 if first else None
    )


def test_without_an_interval_every_step_goes_alone() -> None:
    with outbox(0) as (put, sent):
        for number in range(3):
            put([token("a", number)])
            assert sent.get_nowait() == [token("a", number)]


@pytest.mark.parametrize(
    "urgent",
    [token("b", 9, first=True), token("b", 9, "stop"), Output("b", (), (), "error", 0, "no room")],
    ids=["first token", "last token", "error"],
)
def test_short_steps_go_together_with_what_does_not_wait(urgent: Output) -> None:
    with outbox(NEVER) as (put, sent):
        put([token("a", 0), token("b", 0)])
        assert len(sent.get_nowait()) == 2
        for number in range(1, 4):
            put([token("a", number), token("c", number)])
        assert sent.empty()
        put([urgent])
        a, c, b = sent.get_nowait()
    assert (a.id, c.id, b) == ("a", "c", urgent)
    assert list(a.tokens) == list(c.tokens) == [1, 2, 3]
    assert [entry.chosen for entry in a.logprobs] == [-1.0, -2.0, -3.0]
    assert a.times == Times(1.0, 1, 3)
    assert a.cached_tokens == 16


def test_what_no_step_follows_goes_nevertheless() -> None:
    with outbox(0.01) as (put, sent):
        put([token("a", 0)])
        put([token("a", 1)])
        got: list[int] = []
        while len(got) < 2:
            got += [number for output in sent.get(timeout=60) for number in output.tokens]
    assert got == [0, 1]


def test_what_waits_at_the_end_goes() -> None:
    with outbox(NEVER) as (put, sent):
        put([token("a", 0)])
        put([token("a", 1)])
    assert [list(sent.get_nowait()[0].tokens) for _ in range(2)] == [[0], [1]]
