"""Bodies of errors: OpenAI's {"error": {"message", "type", "param", "code"}}, and Anthropic's
{"type": "error", "error": {"type", "message"}} on its path."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from launch.errors import LaunchError
from launch.serving.errors import CrowdedError, OverloadedError, RequestError, ServingError


class HTTPError(LaunchError):
    """An answer with a status and a message."""

    def __init__(self, kind: "Kind", message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.parameter = kind, parameter


@dataclass(frozen=True)
class Kind:
    """A status and what OpenAI calls it."""

    status: int
    type: str
    code: str | None = None


INVALID = Kind(400, "invalid_request_error")
TOO_LONG = Kind(400, "invalid_request_error", "context_length_exceeded")
UNAUTHORISED = Kind(401, "invalid_request_error", "invalid_api_key")
FORBIDDEN = Kind(403, "invalid_request_error", "forbidden")
NO_SUCH_MODEL = Kind(404, "invalid_request_error", "model_not_found")
NO_SUCH_PATH = Kind(404, "invalid_request_error", "unknown_url")
NO_SUCH_OBJECT = Kind(404, "invalid_request_error", "not_found")
NO_SUCH_METHOD = Kind(405, "invalid_request_error", "method_not_supported")
TOO_LARGE = Kind(413, "invalid_request_error", "request_too_large")
UNSUPPORTED_KIND = Kind(415, "invalid_request_error", "unsupported_media_type")
CROWDED = Kind(429, "rate_limit_error", "rate_limit_exceeded")
OVERLOADED = Kind(503, "server_error", "overloaded")
STOPPED = Kind(503, "server_error", "engine_stopped")
TIMEOUT = Kind(504, "server_error", "timeout")
INTERNAL = Kind(500, "server_error", "internal_error")


def no_such_model(name: str, known: Sequence[str]) -> HTTPError:
    """An error about the name of a model."""
    names = ", ".join(map(repr, known))
    return HTTPError(NO_SUCH_MODEL, f"the model {name!r} does not exist; there is {names}", "model")


def check_model(requested: str, served: str) -> None:
    """Raises HTTPError if a body asks for another model than the one that is served."""
    if requested != served:
        raise no_such_model(requested, [served])


RETRY_SECONDS = 1
"""The time after which a client may try again that came to a full queue."""
MESSAGES = "/v1/messages"
"""The path of Anthropic's API."""
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's types of errors by status; others are `invalid_request_error` or `api_error`."""


def respond(error: Exception, path: str) -> JSONResponse:
    """The answer to a request of a path that tells of an error."""
    status, body = describe(error, path)
    may_try_again = status in (CROWDED.status, OVERLOADED.status)
    seconds = error.seconds if isinstance(error, CrowdedError) else RETRY_SECONDS
    return JSONResponse(body, status, {"Retry-After": str(seconds)} if may_try_again else {})


def describe(error: Exception, path: str = "") -> tuple[int, dict[str, Any]]:
    """The status and the body of an error, in the words of a path's API."""
    kind, message, parameter = INTERNAL, "the server failed: its log says more", None
    if isinstance(error, HTTPError):
        kind, message, parameter = error.kind, str(error), error.parameter
    elif isinstance(error, RequestError):
        is_length = "context length" in str(error)
        kind, message, parameter = TOO_LONG if is_length else INVALID, str(error), error.parameter
    elif isinstance(error, CrowdedError):
        kind, message = CROWDED, str(error)
    elif isinstance(error, OverloadedError):
        kind, message = OVERLOADED, str(error)
    elif isinstance(error, ServingError):
        kind, message = STOPPED, str(error)
    if path == MESSAGES:
        usual = "api_error" if kind.status >= 500 else "invalid_request_error"
        told = {"type": _ANTHROPIC.get(kind.status, usual), "message": message}
        return kind.status, {"type": "error", "error": told}
    body = {"message": message, "type": kind.type, "param": parameter, "code": kind.code}
    return kind.status, {"error": body}
