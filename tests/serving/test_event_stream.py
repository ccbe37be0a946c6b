"""Streams of events to clients that read slowly, go, or get an error instead of an answer."""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from launch.serving.errors import OverloadedError
from launch.serving.http.streaming import EventStream


class Source:
    """An answer of events that the test brings."""

    def __init__(self, *events: bytes) -> None:
        self.is_complete, self.is_open = False, False
        self.error: Exception | None = None
        self._events = list(events)
        self._on_news: Callable[[], None] = lambda: None

    def __enter__(self) -> "Source":
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    def listen(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        on_news()

    def bring(self, *events: bytes, last: bool = False) -> None:
        """More has come."""
        self._events += events
        self.is_complete = last
        self._on_news()

    def fail(self, error: Exception) -> None:
        """Nothing more comes."""
        self.error = error
        self._on_news()

    ending = b"data: [DONE]\n\n"

    def take(self) -> bytes:
        if self.error is not None:
            raise self.error
        events, self._events = self._events, []
        return b"".join(b"data: %b\n\n" % event for event in events)


class Client:
    """What a server does for a client that reads when it is told to, and goes when it is told to:
    `send` waits before it writes, as uvicorn's does."""

    def __init__(self) -> None:
        self.reads, self.has_gone = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.messages: list[MutableMapping[str, Any]] = []

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        self.messages.append(message)

    async def receive(self) -> dict[str, Any]:
        await self.has_gone.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if "body" in message]

    def respond(self, source: Source) -> "asyncio.Task[None]":
        """The response under way."""
        return asyncio.ensure_future(
            EventStream(source)({"type": "http", "path": "/"}, self.receive, self.send)
        )


async def turns() -> None:
    """Everything that can happen now happens."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_events_go_out_in_the_turn_in_which_they_come() -> None:
    async def run() -> None:
        client, source = Client(), Source()
        response = client.respond(source)
        await turns()
        assert client.messages == []  # a status tells of the first event, or of an error
        source.bring(b"1")
        assert client.messages[0]["status"] == 200
        assert client.bodies == [b"data: 1\n\n"]
        source.bring(b"2", b"3", last=True)
        assert client.bodies[1:] == [b"data: 2\n\ndata: 3\n\ndata: [DONE]\n\n"]
        await response
        assert not source.is_open

    asyncio.run(run())


def test_what_a_slow_reader_has_not_read_goes_out_as_one() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"0")
        response = client.respond(source)
        await turns()
        client.reads.clear()
        for event in (b"1", b"2", b"3"):
            source.bring(event)
            await turns()
        assert client.bodies == [b"data: 0\n\n"]
        client.reads.set()
        await turns()
        assert client.bodies[1:] == [b"data: 1\n\n", b"data: 2\n\ndata: 3\n\n"]
        source.bring(b"4", last=True)
        await response
        assert client.bodies[3:] == [b"data: 4\n\ndata: [DONE]\n\n"]
        assert [message.get("more_body") for message in client.messages][-2:] == [True, False]

    asyncio.run(run())


@pytest.mark.parametrize("reads", [True, False])
def test_a_client_that_goes_leaves_the_source(reads: bool) -> None:
    async def run() -> None:
        client, source = Client(), Source()
        response = client.respond(source)
        await turns()
        if not reads:
            client.reads.clear()
        source.bring(b"1")
        assert source.is_open
        client.has_gone.set()
        await response
        assert not source.is_open
        source.bring(b"2")
        assert client.bodies == [b"data: 1\n\n"] * reads

    asyncio.run(run())


def test_an_error_is_the_status_or_the_last_event() -> None:
    async def run(*events: bytes) -> Client:
        client, source = Client(), Source(*events)
        response = client.respond(source)
        await turns()
        source.fail(OverloadedError("too many"))
        await response
        assert not source.is_open
        return client

    refused, broken = asyncio.run(run()), asyncio.run(run(b"1"))
    assert refused.messages[0]["status"] == 503
    assert b"too many" in refused.bodies[0]
    assert broken.messages[0]["status"] == 200
    error, done = broken.bodies[1].split(b"\n\n", 1)
    assert b'"code":"overloaded"' in error
    assert done == b"data: [DONE]\n\n"
