"""Requests to whichever server is to answer them, and answers back as they come."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from yarl import URL

from launch.errors import LaunchError
from launch.program import say
from launch.serving.config import ServerConfig
from launch.serving.errors import OverloadedError, ServingError
from launch.serving.http.adapters import LOAD, UNLOAD
from launch.serving.http.app import CLIENT_CLOSED, read_body
from launch.serving.http.errors import MESSAGES, OVERLOADED, describe, respond
from launch.serving.http.streaming import ClientGone, while_connected
from launch.serving.router.metrics import merge_metrics
from launch.serving.router.placement import NO_WORK, Placement, Ticket, Work, measure_work
from launch.serving.router.replica import Replica

_KEPT = ("/v1/files", "/v1/batches", "/v1/responses")
"""Paths of what one server keeps for later: all of them are asked of the first."""
_OF_A_CONNECTION = {
    "connection", "content-length", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-forwarded-for",
}  # fmt: skip
"""Headers that are about one connection (RFC 9110, 7.6.1), or that the router writes itself."""
_GONE = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
_EVENTS = "text/event-stream"


class Router:
    """The application. A request whose answer has not begun when its server ends goes to another
    one; an answer that has begun ends with an error.

    Attributes:
      draining: why no new requests are taken, if they are not.
      under_way: requests that wait for their answers, or for the rest of them.
    """

    def __init__(self, replicas: Sequence[Replica], config: ServerConfig) -> None:
        self._replicas, self._config = replicas, config
        self._placement = Placement(len(replicas))
        self._adapters: dict[str, tuple[bytes, Mapping[str, str]]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._retried = 0
        self.draining: str | None = None
        self.under_way = 0
        for replica in replicas:
            replica.on_up = self._welcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.under_way += 1
        try:
            response = await self._respond(request)
            await response(scope, receive, send)
        except LaunchError as error:
            await respond(error, scope["path"])(scope, receive, send)
        finally:
            self.under_way -= 1

    async def _respond(self, request: Request) -> Response:
        path = request.url.path
        if path in ("/health", "/ping"):
            self._check_open()
            return Response(status_code=200)
        if path == "/metrics":
            return Response(await self._metrics(), media_type=CONTENT_TYPE_LATEST)
        if path == "/load":
            return JSONResponse(await self._load())
        try:
            most = self._config.max_body_bytes
            data = await read_body(request, most, self._config.body_timeout)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        if request.method == "POST":
            self._check_open()
        if path in (LOAD, UNLOAD):
            return await self._tell_all(request, data)
        try:
            return await while_connected(request, self._pass_on(request, data))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)

    async def _pass_on(self, request: Request, data: bytes) -> Response:
        """The answer of the best server that begins one."""
        work = _work_of(request, data)
        kept = request.url.path.startswith(_KEPT)
        numbers = [replica.number for replica in self._up()]
        order = [0] if kept else self._placement.order(work, numbers)
        headers = _headers_of(request)
        last: Response | None = None
        for attempt, number in enumerate(order):
            replica, ticket = self._replicas[number], self._placement.begin(work, number)
            self._retried += attempt > 0
            try:
                response = await self._begin(replica, request, headers, data, ticket)
            except _GONE:
                replica.is_up = False  # until it says that it is well
                continue
            if isinstance(response, _Stream) or response.status_code != OVERLOADED.status:
                return response
            last = response
        if last is not None:
            return last
        raise OverloadedError(
            "the server that keeps it is being started again: try again"
            if kept
            else "none of the servers takes requests at the moment: try again"
        )

    async def _begin(
        self,
        replica: Replica,
        request: Request,
        headers: Sequence[tuple[str, str]],
        data: bytes,
        ticket: Ticket,
    ) -> Response:
        """The answer of a server: the whole of it, unless it is a stream of events."""
        is_over = True
        try:
            response = await _ask(replica, request, headers, data)
            back = _headers_back(response)
            if _EVENTS not in response.headers.get("content-type", ""):
                return Response(await response.read(), response.status, back)
            is_over = False
            return _Stream(response, back, replica, request.url.path, self._end(ticket))
        finally:
            if is_over:
                self._placement.end(ticket)

    def _end(self, ticket: Ticket) -> Callable[[], None]:
        return lambda: self._placement.end(ticket)

    async def _tell_all(self, request: Request, data: bytes) -> Response:
        """Loads or unloads an adapter everywhere; the first refusal is the answer."""
        headers, answers = dict(_headers_of(request)), []
        for replica in self._up():
            with suppress(*_GONE):
                response = await _ask(replica, request, [*headers.items()], data)
                body, back = await response.read(), _headers_back(response)
                answers.append(Response(body, response.status, back))
        if not answers:
            raise OverloadedError("none of the servers takes requests at the moment: try again")
        refused = next((answer for answer in answers if answer.status_code != 200), None)
        name = str(_json_of(data).get("lora_name"))
        if refused is None and request.url.path == LOAD:
            self._adapters[name] = data, headers
        elif request.url.path == UNLOAD:
            self._adapters.pop(name, None)
        return refused or answers[0]

    def _welcome(self, replica: Replica) -> None:
        """A server that has begun anew has an empty cache, and none of the adapters that were
        loaded since the start."""
        self._placement.forget_cache(replica.number)
        for name, (data, headers) in self._adapters.items():
            task = asyncio.ensure_future(self._load_again(replica, name, data, headers))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _load_again(
        self, replica: Replica, name: str, data: bytes, headers: Mapping[str, str]
    ) -> None:
        with suppress(*_GONE):
            url = f"{replica.url}{LOAD}"
            async with replica.session.post(url, data=data, headers=headers) as response:
                if response.status != 200:
                    told = await response.text()
                    say(f"replica {replica.number} cannot load the adapter {name}: {told}")

    def _up(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.is_up]

    def _check_open(self) -> None:
        if self.draining is not None:
            raise OverloadedError("the server is shutting down: no new requests are accepted")
        if not self._up():
            raise OverloadedError("none of the servers takes requests at the moment: try again")

    async def _ask_all(self, path: str) -> dict[int, bytes]:
        """What the servers that answer a path say there, by their numbers."""
        told = {}
        for replica in self._up():
            with suppress(*_GONE):
                async with replica.session.get(f"{replica.url}{path}") as response:
                    if response.status == 200:  # one that is ending refuses
                        told[replica.number] = await response.read()
        return told

    async def _metrics(self) -> bytes:
        texts = {
            number: data.decode() for number, data in (await self._ask_all("/metrics")).items()
        }
        return merge_metrics(texts, self._replicas, self._retried)

    async def _load(self) -> dict[str, Any]:
        """How busy all of them are: numbers are sums, but for times and lengths."""
        loads = [json.loads(data) for data in (await self._ask_all("/load")).values()]
        if not loads:
            raise OverloadedError("none of the servers takes requests at the moment: try again")
        total = dict(loads[0])
        for name in _SUMS & total.keys():
            total[name] = sum(load[name] for load in loads)
        return total


class _Stream(StreamingResponse):
    """A server's events as they come. If it ends in the middle, the last event says so."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        headers: Mapping[str, str],
        replica: Replica,
        path: str,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(self._pieces(), response.status, headers)
        self._response, self._replica, self._path = response, replica, path
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # the client may have gone, too
            self._response.close()
            self._on_end()

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except _GONE:
            self._replica.is_up = False
            number = self._replica.number
            error = ServingError(f"replica {number} ended in the middle of the answer")
            name = "event: error\n" if self._path == MESSAGES else ""
            yield f"{name}data: {json.dumps(describe(error, self._path)[1])}\n\n".encode()


_SUMS = {
    "running", "waiting", "slots", "blocks_held", "blocks", "generation_tokens", "prefix_hits",
    "preemptions",
}  # fmt: skip


async def _ask(
    replica: Replica, request: Request, headers: Sequence[tuple[str, str]], data: bytes
) -> aiohttp.ClientResponse:
    target = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    url = URL(f"{replica.url}{target}{f'?{query}' if query else ''}", encoded=True)
    return await replica.session.request(
        request.method, url, data=data, headers=headers, allow_redirects=False
    )


def _work_of(request: Request, data: bytes) -> Work:
    if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
        return NO_WORK
    return measure_work(_json_of(data))


def _json_of(data: bytes) -> Mapping[str, Any]:
    """The body; what is none is for the server to refuse."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _headers_of(request: Request) -> list[tuple[str, str]]:
    """The headers for a server, which sees the client's name for it and who the client is."""
    kept = [(k, v) for k, v in request.headers.items() if k not in _OF_A_CONNECTION]
    client = request.client.host if request.client else ""
    return [*kept, ("host", request.headers.get("host", "")), ("x-forwarded-for", client)]


def _headers_back(response: aiohttp.ClientResponse) -> dict[str, str]:
    own = _OF_A_CONNECTION | {"date", "server"}
    return {name: text for name, text in response.headers.items() if name.lower() not in own}
