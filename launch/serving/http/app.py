"""Routes, and what holds for all of them: keys, limits, bodies of errors."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from launch.errors import LaunchError
from launch.serving.config import ServerConfig
from launch.serving.errors import OverloadedError, ServingError
from launch.serving.http.bodies import Body
from launch.serving.http.chat import Chat
from launch.serving.http.completions import Completion
from launch.serving.http.context import Served
from launch.serving.http.errors import (
    INVALID,
    NO_SUCH_METHOD,
    NO_SUCH_PATH,
    TIMEOUT,
    TOO_LARGE,
    UNAUTHORISED,
    HTTPError,
    Kind,
    describe,
)
from launch.serving.http.streaming import ClientGone, EventStream, while_connected
from models.errors import ModelsError

_ASSETS = Path(__file__).parent / "assets"
CLIENT_CLOSED = 499  # nginx's word for a client that did not wait; nobody reads the answer


class Endpoints:
    """The answers to all paths."""

    def __init__(self, served: Served, config: ServerConfig) -> None:
        self._served, self._config = served, config

    async def completions(self, request: Request) -> Response | ASGIApp:
        """POST /v1/completions"""
        return await self._answer(request, Completion.read)

    async def chat(self, request: Request) -> Response | ASGIApp:
        """POST /v1/chat/completions"""
        return await self._answer(request, Chat.read)

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        self._served.check_name(request.path_params["name"])
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """GET /health: 200 as long as new requests are taken."""
        self._check_open()
        return Response(status_code=200)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        return Response(self._served.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        """GET /version"""
        return JSONResponse({"version": version("neuronjax")})

    async def load(self, request: Request) -> Response:
        """GET /load: the batch at this moment, for the page."""
        load = self._served.service.engine.load()
        return JSONResponse(
            {
                "model": self._served.name,
                "facts": f"texts of up to {self._served.longest} tokens",
                "seconds": time.monotonic(),
                "running": load.running,
                "waiting": load.waiting,
                "slots": load.slots,
                "blocks_held": load.blocks_held,
                "blocks": load.blocks,
                "generation_tokens": load.counters.generation_tokens,
                "prefix_hits": load.counters.prefix_hits,
                "preemptions": load.counters.preemptions,
            }
        )

    async def page(self, request: Request) -> Response:
        """GET /: a page to try the model in."""
        return FileResponse(_ASSETS / "page.html")

    async def script(self, request: Request) -> Response:
        """GET /page.js"""
        return FileResponse(_ASSETS / "page.js")

    async def _answer(
        self, request: Request, read: Callable[[Served, Body], Completion | Chat]
    ) -> Response | ASGIApp:
        self._check_open()
        body = Body.parse(await self._read(request))
        # Templates and tokenizers of long prompts would keep everybody else waiting.
        answer = await asyncio.to_thread(read, self._served, body)
        if answer.wanted.stream:
            return EventStream(answer.events())
        try:
            async with asyncio.timeout(self._config.request_timeout):
                return JSONResponse(await while_connected(request, answer.whole()))
        except TimeoutError as error:
            raise HTTPError(
                TIMEOUT,
                f"the answer took longer than {self._config.request_timeout:g} s. Ask for fewer "
                "tokens, or for a stream.",
            ) from error
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)

    async def _read(self, request: Request) -> bytes:
        most = self._config.max_body_bytes
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise HTTPError(TOO_LARGE, f"the body is larger than {most} bytes")
        return bytes(data)

    def _check_open(self) -> None:
        engine = self._served.service.engine
        if engine.failure is not None:
            raise ServingError(f"the engine has stopped: {engine.failure}")
        if self._served.service.draining:
            raise OverloadedError("the server is about to end: no new requests are taken")

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._served.name,
            "object": "model",
            "created": self._served.created,
            "owned_by": "neuronjax",
            "root": self._served.name,
            "max_model_len": self._served.longest,
        }


class KeyCheck:
    """Paths below /v1 need the key."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._allows(scope):
            error = HTTPError(
                UNAUTHORISED, "the API key is missing or wrong: Authorization: Bearer"
            )
            await _respond(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, scope: Any) -> bool:
        if self._key is None:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self._key}".encode())


def make_app(served: Served, config: ServerConfig) -> ASGIApp:
    """The application."""
    endpoints = Endpoints(served, config)
    get, post = ["GET"], ["POST"]
    routes = [
        Route("/v1/completions", endpoints.completions, methods=post),
        Route("/v1/chat/completions", endpoints.chat, methods=post),
        Route("/v1/models", endpoints.models, methods=get),
        Route("/v1/models/{name:path}", endpoints.model, methods=get),
        Route("/", endpoints.page, methods=get),
        Route("/page.js", endpoints.script, methods=get),
        Route("/load", endpoints.load, methods=get),
        Route("/health", endpoints.health, methods=get),
        Route("/metrics", endpoints.metrics, methods=get),
        Route("/version", endpoints.version, methods=get),
    ]
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: _refused,
        Exception: _failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    for known in (LaunchError, ModelsError):
        app.add_exception_handler(known, _failed)
    return KeyCheck(app, config.api_key)


async def _failed(request: Request, error: Exception) -> Response:
    return _respond(error)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: NO_SUCH_PATH, 405: NO_SUCH_METHOD}
    kind: Kind = kinds.get(error.status_code, INVALID)
    where = f"{request.method} {request.url.path}"
    return _respond(HTTPError(kind, f"{where}: {error.detail}"))


def _respond(error: Exception) -> Response:
    status, body = describe(error)
    return JSONResponse(body, status)
