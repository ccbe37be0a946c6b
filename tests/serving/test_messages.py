"""What two processes of a server tell each other: whatever happens, somebody gets an answer."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import LaunchError
from launch.serving.batcher import Batcher
from launch.serving.channel import Channel, Unpacker, packed
from launch.serving.desk import BatchDesk, Desk, EngineDesk
from launch.serving.errors import ComputingError, OverloadedError
from launch.serving.grammar import Grammars
from launch.serving.http.link import Link
from launch.serving.messages import (
    AskLoad,
    Call,
    Compute,
    Outputs,
    Raised,
    Refused,
    Returned,
    Submit,
    Withdraw,
)
from launch.serving.requests import Logprobs, Output, Request, Times


@given(
    messages=st.lists(st.one_of(st.binary(max_size=40), st.integers(), st.text(max_size=9))),
    cuts=st.lists(st.integers(1, 30), min_size=1),
)
def test_messages_come_in_pieces_of_any_size(messages: list[Any], cuts: list[int]) -> None:
    data, unpacker = b"".join(map(packed, messages)), Unpacker()
    got: list[Any] = []
    place = 0
    while data:
        size = cuts[place % len(cuts)]
        got.extend(unpacker.feed(data[:size]))
        data, place = data[size:], place + 1
    assert got == messages


def test_outputs_come_as_they_were_sent() -> None:
    outputs = [
        Output("a", (1, 2), (), None, 16),
        Output("b", (3,), [Logprobs(-0.5, [3, 4], [-0.5, -1.5])], "stop", 0),
        Output("c", (), (), "error", 0, "no room", Times(0.5, 1.0, 1.5)),
    ]
    (got,) = Unpacker().feed(packed(Outputs(outputs)))
    assert isinstance(got, Outputs)
    assert got.outputs == outputs
    assert got.outputs[1].logprobs[0].chosen == -0.5
    assert all(isinstance(output, Output) for output in got.outputs)


def test_commands_of_one_turn_go_in_one_piece() -> None:
    pieces: list[bytes] = []
    commands = [Withdraw(number) for number in range(3)]

    class Transport(asyncio.WriteTransport):
        def write(self, data: Any) -> None:
            pieces.append(bytes(data))

    async def send() -> None:
        link = Link()
        link.connection_made(Transport())
        for command in commands:
            link.send(command)
        await asyncio.sleep(0)
        link.send(commands[0])
        await asyncio.sleep(0)

    asyncio.run(send())
    got = [list(Unpacker().feed(piece)) for piece in pieces]
    assert got == [commands, commands[:1]]


class Adding:
    """Work that adds two to numbers, one by one, each when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)

    def group(self, waiting: Sequence[Any]) -> Sequence[int]:
        return [0]

    def compute(self, items: Sequence[Any]) -> Sequence[Any]:
        assert self.gate.acquire(timeout=60)
        return [2 + items[0]]


def test_an_end_that_is_closed_between_two_messages_has_no_more() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    theirs.send("hello")
    messages = ours.messages()
    assert next(messages) == "hello"
    ours.close()
    assert list(messages) == []
    theirs.close()


@contextmanager
def other_end(desk: Desk) -> Iterator[tuple[Channel, Iterator[Any]]]:
    """A channel to a desk, and what comes back."""
    ours, theirs = map(Channel, socket.socketpair())
    thread = threading.Thread(target=desk.work, args=(theirs,))
    thread.start()
    try:
        yield ours, ours.messages()
    finally:
        ours.close()
        thread.join(60)
        assert not thread.is_alive()
        theirs.close()


def test_calls_are_answered_in_groups_and_can_be_withdrawn() -> None:
    work = Adding()
    with Batcher[Any, Any](work, max_waiting=1) as batcher, other_end(BatchDesk(batcher)) as end:
        channel, reports = end
        channel.send(Call(1, Compute([1, 2])))
        channel.send(Call(2, Compute([3])))
        channel.send(Call(3, Compute([4])))
        refused = next(reports)
        assert (type(refused), refused.number) == (Raised, 3)
        assert isinstance(refused.error, OverloadedError)
        channel.send(Withdraw(2))
        end_of_wait = time.monotonic() + 60
        while batcher.load().running == 0:
            assert time.monotonic() < end_of_wait
        for _ in range(2):
            work.gate.release()
        assert next(reports) == Returned(1, [3, 4])
        channel.send(Call(4, Compute([])))
        assert next(reports) == Returned(4, [])
        channel.send(Call(5, AskLoad()))
        load = next(reports).value
        assert (load.computed, load.waiting) == (2, 0)


def test_work_that_fails_is_told_and_logged(capfd: pytest.CaptureFixture[str]) -> None:
    work = Adding()
    with Batcher[Any, Any](work, max_waiting=1) as batcher, other_end(BatchDesk(batcher)) as end:
        channel, reports = end
        work.gate.release()
        channel.send(Call(1, Compute(["no number"])))
        report = next(reports)
    assert isinstance(report.error, ComputingError)
    assert "TypeError" in str(report.error)
    assert "TypeError" in capfd.readouterr().err


class Odd:
    """An engine with a defect."""

    failure: Exception | None = None

    def submit(self, request: Request) -> None:
        raise ZeroDivisionError("somewhere")

    def load(self) -> str:
        return "still here"

    def close(self) -> None:
        pass


def test_a_defect_ends_one_request_alone() -> None:
    with (
        EngineDesk(lambda deliver: Odd(), Grammars(None, 256)) as desk,  # type: ignore[arg-type,return-value]
        other_end(desk) as (channel, reports),
    ):
        channel.send(Submit(Request("a", [1], 1)))
        report = next(reports)
        assert isinstance(report, Refused)
        assert report.request_id == "a"
        assert isinstance(report.error, LaunchError)
        channel.send(Submit(Request("b", [1], 1, form="no grammar")))
        assert next(reports).request_id == "b"
        channel.send(Call(1, AskLoad()))
        assert next(reports) == Returned(1, "still here")
