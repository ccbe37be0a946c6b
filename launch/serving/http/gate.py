"""Who may come in, before anything of a request is read: names of this server, pages, keys.

A page in somebody's browser can send requests to servers that only this machine reaches. It does so
under a name of its own that leads here (DNS rebinding), or from its own origin.
"""

import hashlib
import hmac
import ipaddress
import socket
import uuid
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp

from launch.serving.config import ServerConfig, split_names
from launch.serving.http.errors import FORBIDDEN, UNAUTHORISED, HTTPError, respond

ANY = "*"
_READING = ("GET", "HEAD", "OPTIONS")
_REQUEST_ID = "x-request-id"
_LONGEST_ID = 200  # characters of a client's identifier

# What tells nothing of texts, and what browsers and probes ask for without a key.
OPEN_PATHS = ("/", "/page.js", "/load", "/health", "/ping", "/metrics", "/version")


class Gate:
    """Lets requests through to an application, and gives each answer its `X-Request-Id`: the
    client's, or one of its own."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        """`app` is for those that may come in."""
        self._app, self._key = app, config.key()
        self._hosts = _own_names(config)
        self._origins = split_names("allowed_origins", config.allowed_origins)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        identifier = headers.get(_REQUEST_ID, "")[:_LONGEST_ID] or uuid.uuid4().hex
        MutableHeaders(scope=scope)[_REQUEST_ID] = identifier

        async def send_with_id(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_REQUEST_ID] = identifier
            await send(message)

        try:
            self._check_host(headers.get("host", ""))
            self._check_origin(scope["method"], headers)
            self._check_key(scope["path"], _key_of(headers))
        except HTTPError as error:
            await respond(error, scope["path"])(scope, receive, send_with_id)
            return
        await self._app(scope, receive, send_with_id)

    def _check_host(self, host: str) -> None:
        name = _name_of(host)
        if ANY in self._hosts or name in self._hosts or _is_address(name):
            return
        raise HTTPError(
            FORBIDDEN, f"{name!r} is no name of this server: start it with --allowed_hosts={name}"
        )

    def _check_origin(self, method: str, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or method in _READING or ANY in self._origins:
            return
        if origin in self._origins or urlsplit(origin).netloc == headers.get("host"):
            return
        raise HTTPError(
            FORBIDDEN,
            f"pages of {origin} may not use this server: start it with --allowed_origins={origin}",
        )

    def _check_key(self, path: str, given: str) -> None:
        if self._key is None or path in OPEN_PATHS:
            return
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise HTTPError(UNAUTHORISED, "the API key is missing or wrong: Authorization: Bearer")


def _key_of(headers: Headers) -> str:
    """The key that a client of OpenAI's API sends, or of Anthropic's; empty if there is none."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key if kind == "Bearer" else headers.get("x-api-key", "")


def client_of(request: Request) -> str:
    """Who sends a request, for equal shares: the key that it has, whether one is needed or not, or
    else the address that it comes from."""
    key = _key_of(request.headers)
    if key:
        return hashlib.sha256(key.encode()).hexdigest()
    if request.client is not None and request.client.host:
        return request.client.host
    return request.headers.get("x-forwarded-for", "")  # a router is at a Unix socket's other end


def _own_names(config: ServerConfig) -> Collection[str]:
    """Returns the names by which a browser may call this server. Addresses need none: only names
    can be made to lead elsewhere."""
    own = {"localhost", config.host, socket.gethostname()}
    return {name.lower() for name in (*own, *split_names("allowed_hosts", config.allowed_hosts))}


def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
