"""Routes, and what holds for all of them: limits, bodies of errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from launch.errors import LaunchError
from launch.serving.config import ServerConfig, split_names
from launch.serving.errors import OverloadedError, ServingError
from launch.serving.http.batches import with_batches
from launch.serving.http.errors import (
    FORBIDDEN,
    INVALID,
    NO_SUCH_METHOD,
    NO_SUCH_PATH,
    TIMEOUT,
    TOO_LARGE,
    HTTPError,
    no_such_model,
    respond,
)
from launch.serving.http.gate import Gate, client_of
from launch.serving.http.site import (
    JSON,
    Answer,
    Endpoint,
    Resource,
    Site,
    with_invocations,
)
from launch.serving.http.streaming import ClientGone, EventStream, while_connected
from models.errors import ModelsError

Answering = Callable[[Request], Awaitable[ASGIApp]]

_ASSETS = Path(__file__).parent / "assets"
_NOT_KEPT = {"Cache-Control": "no-cache"}  # another version of the server has another page
_SHORT = 4096  # bytes of a body: reading it takes no longer than asking another thread to
_DIGITS = 18  # of a length; a longer one is no length of a body
CLIENT_CLOSED = 499  # nginx's word for a client that did not wait; nobody reads the answer


class Pages:
    """The answers to all paths."""

    def __init__(self, site: Site, config: ServerConfig) -> None:
        self._site, self._config = site, config
        self._has_key = config.key() is not None

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        return JSONResponse({"object": "list", "data": list(self._site.models())})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        name, entries = request.path_params["name"], self._site.models()
        for entry in entries:
            if entry["id"] == name:
                return JSONResponse(dict(entry))
        raise no_such_model(name, [str(entry["id"]) for entry in entries])

    async def health(self, request: Request) -> Response:
        """GET /health, and SageMaker's /ping: 200 as long as new requests are taken."""
        self._check_open()
        return Response(status_code=200)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics"""
        return Response(await self._site.metrics(), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        """GET /version"""
        return JSONResponse({"version": version("neuronjax")})

    async def load(self, request: Request) -> Response:
        """GET /load: how busy the server is at this moment, for the page."""
        common = {"model": self._site.name, "seconds": time.monotonic()}
        models = [entry["id"] for entry in self._site.models()]
        paths = list(self._site.endpoints)
        return JSONResponse({**common, "models": models, "paths": paths, **await self._site.load()})

    async def page(self, request: Request) -> Response:
        """GET /: a page to try the model in."""
        return FileResponse(_ASSETS / "page.html", headers=_NOT_KEPT)

    async def script(self, request: Request) -> Response:
        """GET /page.js"""
        return FileResponse(_ASSETS / "page.js", headers=_NOT_KEPT)

    async def refused(self, request: Request, error: Exception) -> Response:
        """The response to a path or a method that there is not."""
        assert isinstance(error, HTTPException)
        where, detail = f"{request.method} {request.url.path}", error.detail
        if error.status_code == 404:
            detail = f"{self._site.name} answers to {', '.join(self._site.endpoints)}"
        kinds = {404: NO_SUCH_PATH, 405: NO_SUCH_METHOD}
        kind = kinds.get(error.status_code, INVALID)
        return respond(HTTPError(kind, f"{where}: {detail}"), request.url.path)

    def answer(self, endpoint: Endpoint) -> Answering:
        """The handler of POST requests to one of the site's endpoints."""

        async def answer(request: Request) -> ASGIApp:
            self._check_open()
            if endpoint.needs_key and not self._has_key:
                raise HTTPError(
                    FORBIDDEN,
                    f"{request.url.path} changes the server: start it with --api_key_file",
                )
            try:
                most = max(self._config.max_body_bytes, endpoint.body_bytes)
                data = await read_body(request, most, self._config.body_timeout)
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED)
            body = await endpoint.parse(request.headers, data)
            body.client = client_of(request)
            if len(data) > _SHORT:
                # Templates and tokenizers of long prompts would keep everybody else waiting.
                answer = await asyncio.to_thread(endpoint.read_all, body)
            else:
                answer = endpoint.read_all(body)
            source = answer.stream()
            return await self._whole(request, answer) if source is None else EventStream(source)

        return answer

    def ask(self, resource: Resource) -> Callable[[Request], Awaitable[Response]]:
        """The handler of requests for one of the site's resources."""

        async def ask(request: Request) -> Response:
            identifier = request.path_params.get("identifier", "")
            told = resource.act(client_of(request), identifier)
            return Response(told) if isinstance(told, bytes) else JSONResponse(told)

        return ask

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json: the paths; bodies are described where their APIs are."""
        body = {"content": {JSON: {"schema": {"type": "object"}}}}
        done = {"200": {"description": "the answer", **body}}
        paths: dict[str, dict[str, Any]] = {
            path: {"post": {"requestBody": body, "responses": done}}
            for path in self._site.endpoints
        }
        for method, path, _ in self._site.resources:
            paths.setdefault(path, {})[method.lower()] = {"responses": done}
        info = {"title": self._site.name, "version": version("neuronjax")}
        return JSONResponse({"openapi": "3.1.0", "info": info, "paths": paths})

    async def _whole(self, request: Request, answer: Answer) -> Response:
        try:
            async with asyncio.timeout(self._config.request_timeout):
                content = await while_connected(request, answer.whole())
        except TimeoutError as error:
            raise HTTPError(
                TIMEOUT,
                f"the answer took longer than {self._config.request_timeout:g} s. Ask for less, "
                "or for a stream.",
            ) from error
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        return PlainTextResponse(content) if isinstance(content, str) else JSONResponse(content)

    def _check_open(self) -> None:
        worker = self._site.worker
        if worker.failure is not None:
            raise ServingError(f"the engine has stopped: {worker.failure}")
        if worker.draining:
            raise OverloadedError("the server is shutting down: no new requests are accepted")


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """A body of at most so many bytes, which may take so long to come. Raises HTTPError for others,
    ClientDisconnect for one that ends too soon."""
    data = bytearray()
    too_large = HTTPError(TOO_LARGE, f"the body is larger than {most} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > _DIGITS or int(declared) > most):
        raise too_large
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise too_large
    except TimeoutError as error:
        raise HTTPError(TIMEOUT, f"the body has not come within {seconds:g} s") from error
    return bytes(data)


class Posts:
    """Answers bodies that come to a site's endpoints, without what Starlette wraps around every
    piece of an answer; everything else is for the application."""

    def __init__(self, app: ASGIApp, answers: Mapping[str, Answering]) -> None:
        """`answers` by path."""
        self._app, self._answers = app, answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self._answers.get(scope["path"]) if scope.get("method") == "POST" else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await answer(Request(scope, receive))
        except (LaunchError, ModelsError) as error:
            response = respond(error, scope["path"])
        except Exception as error:
            await respond(error, scope["path"])(scope, receive, send)
            raise  # for the log
        await response(scope, receive, send)


def make_app(site: Site, config: ServerConfig) -> ASGIApp:
    """The ASGI application of a site, with all its paths."""
    site = with_batches(with_invocations(site))
    pages = Pages(site, config)
    get, post = ["GET"], ["POST"]
    answers = {path: pages.answer(endpoint) for path, endpoint in site.endpoints.items()}
    routes = [
        *(Route(path, answer, methods=post) for path, answer in answers.items()),
        *(Route(r.path, pages.ask(r), methods=[r.method]) for r in site.resources),
        Route("/openapi.json", pages.openapi, methods=get),
        Route("/v1/models", pages.models, methods=get),
        Route("/v1/models/{name:path}", pages.model, methods=get),
        Route("/", pages.page, methods=get),
        Route("/page.js", pages.script, methods=get),
        Route("/load", pages.load, methods=get),
        Route("/health", pages.health, methods=get),
        Route("/ping", pages.health, methods=[*get, *post]),
        Route("/metrics", pages.metrics, methods=get),
        Route("/version", pages.version, methods=get),
    ]
    handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: pages.refused,
        Exception: _respond_failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    for known in (LaunchError, ModelsError):
        app.add_exception_handler(known, _respond_failed)
    return let_pages_in(Gate(Posts(app, answers), config), config)


def let_pages_in(app: ASGIApp, config: ServerConfig) -> ASGIApp:
    """The application, which tells browsers what scripts of other origins may ask of it."""
    origins = split_names("allowed_origins", config.allowed_origins)
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=split_names("allowed_methods", config.allowed_methods),
        allow_headers=split_names("allowed_headers", config.allowed_headers),
        allow_credentials=config.allow_credentials,
    )


async def _respond_failed(request: Request, error: Exception) -> Response:
    return respond(error, request.url.path)
