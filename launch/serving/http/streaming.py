"""Answers over time: server-sent events, and clients that go before the end."""

import asyncio
import traceback
from collections.abc import Awaitable, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from launch.errors import LaunchError
from launch.serving.http.errors import MESSAGES, describe, respond
from launch.serving.http.site import Stream

T = TypeVar("T")

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_EVENT = b"data: %b\n\n"


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
    """A response of events, each sent in the turn of the loop in which its tokens come: no task
    wakes up for it, unless the client reads slowly. The status tells of an error that comes before
    the first event. The source is left when it ends or the client goes."""

    def __init__(self, source: Stream) -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._source as source:
                await _Sender(source, send, scope["path"]).run(receive)
        except LaunchError as error:  # nothing has been sent
            await respond(error, scope["path"])(scope, receive, send)


class _Sender:
    """The sender of the events that a stream gives."""

    def __init__(self, source: Stream, send: Send, path: str) -> None:
        self._source, self._send, self._path = source, send, path
        self._has_begun = False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: asyncio.Future[None] | None = None  # for the client to read

    async def run(self, receive: Receive) -> None:
        """Sends until all is sent or the client goes. Raises LaunchError if there is an error
        before the first event."""
        watch = asyncio.ensure_future(_disconnect(receive))
        try:
            self._source.listen(self._send_news)
            await asyncio.wait((self._over, watch), return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                self._over.result()
        finally:
            self._over.cancel()
            await _end(watch, *filter(None, (self._waiting,)))

    def _send_news(self) -> None:
        """Sends what has come since the last time, if the client has read what came before."""
        if self._waiting is not None or self._over.done():
            return
        try:
            rest = self._begin()
        except Exception as error:  # for who waits
            self._over.set_exception(error)
            return
        if rest is not None:
            self._waiting = asyncio.ensure_future(self._go_on(rest))

    def _begin(self) -> Awaitable[None] | None:
        """Sends what can be sent without waiting; what is left, if anything is. Raises an error
        that comes before any event; a client that has begun to read learns it from an event."""
        try:
            body, is_last = self._source.take(), self._source.is_complete
        except Exception as error:
            if not self._has_begun:
                raise
            if not isinstance(error, LaunchError):
                traceback.print_exception(error)
            name = b"event: error\n" if self._path == MESSAGES else b""
            body, is_last = name + _EVENT % orjson.dumps(describe(error, self._path)[1]), True
        if not body and not is_last:
            return None
        if is_last or not self._has_begun:
            return begun(self._send_end(body, is_last))
        return begun(self._send({"type": "http.response.body", "body": body, "more_body": True}))

    async def _send_end(self, body: bytes, is_last: bool) -> None:
        """Sends the first events, or the last ones, or all."""
        if not self._has_begun:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        body = body + self._source.ending if is_last else body
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        if is_last and not self._over.done():
            self._over.set_result(None)

    async def _go_on(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except Exception as error:  # for who waits
            if not self._over.done():
                self._over.set_exception(error)
        self._waiting = None
        self._send_news()


def begun(work: Awaitable[None]) -> Awaitable[None] | None:
    """Does what can be done without waiting; what is left to be awaited, None if nothing is."""
    steps = work.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return None
    return _rest(steps, awaited)


@coroutine
def _rest(work: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Goes on with work that waits for something."""
    while True:
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # for the work, such as a cancellation
            step = partial(work.throw, error)
        try:
            awaited = step()
        except StopIteration:
            return


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
