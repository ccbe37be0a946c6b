"""Answers over time: server-sent events, and clients that go before the end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from launch.serving.http.errors import describe

T = TypeVar("T")

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes: ClientGone.

    The body must have been read.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watch)


class EventStream:
    """A response of events; the source is closed when it ends or the client goes."""

    def __init__(self, events: AsyncGenerator[dict[str, Any], None]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.ensure_future(self._send(send))
        watch = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((sender, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(sender, watch)
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        try:
            async for event in self._events:
                await send(_chunk(orjson.dumps(event)))
        except Exception as error:  # the status has been sent: the client learns it from an event
            await send(_chunk(orjson.dumps(describe(error)[1])))
        await send(_chunk(b"[DONE]", is_last=True))


def _chunk(data: bytes, *, is_last: bool = False) -> dict[str, Any]:
    body = b"data: %b\n\n" % data
    return {"type": "http.response.body", "body": body, "more_body": not is_last}


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
