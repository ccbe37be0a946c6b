"""A served model as the application sees it, and its endpoints."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from starlette.datastructures import Headers

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.errors import UNSUPPORTED_KIND, HTTPError
from launch.serving.http.link import Link

JSON = "application/json"


class Worker(Protocol):
    """The worker that computes the answers."""

    draining: bool  # no new requests are taken
    failure: Exception | None  # why nothing is computed any more

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""


class Answer(Protocol):
    """A body that has been read, and what answers it."""

    async def whole(self) -> dict[str, Any] | str:
        """The answer at once: JSON or plain text."""

    def stream(self) -> "Stream | None":
        """The answer piece by piece, if that was asked for."""


class Stream(Protocol):
    """An answer piece by piece. Entering the block asks for it, and leaving it early cancels it."""

    def __enter__(self) -> "Stream":
        """Raises LaunchError for what cannot be answered."""

    def __exit__(self, *_: object) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes of the answer."""

    def listen(self, on_news: Callable[[], None]) -> None:
        """Calls `on_news`, which must not raise, whenever there is something to take."""

    def take(self) -> bytes:
        """The events of what has come since the last time. Raises LaunchError if nothing more can
        come."""

    @property
    def ending(self) -> bytes:
        """The bytes behind all events."""


class WholeAnswer:
    """An answer that is never a stream."""

    def stream(self) -> None:
        return None


async def parse_json(headers: Headers, data: bytes) -> Body:
    """Raises RequestError for what is no JSON object, HTTPError for what is not sent as JSON: a
    page of another origin may send texts and forms without asking the server first."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise HTTPError(
            UNSUPPORTED_KIND, f"the body is {kind or 'of no type'}; Content-Type: {JSON} is needed"
        )
    return Body.parse(data)


class Endpoint(NamedTuple):
    """The treatment of a path's bodies: `parse`, then `read`. Both raise RequestError or
    HTTPError."""

    read: Callable[[Body], Answer]
    parse: Callable[[Headers, bytes], Awaitable[Body]] = parse_json
    body_bytes: int = 0  # that a body may have even if the server's limit is smaller
    needs_key: bool = False  # it changes the server, so that one without a key refuses it

    def read_all(self, body: Body) -> Answer:
        """Reads a body, and raises RequestError for a field that `read` did not look at. Long
        bodies are read in a thread of their own."""
        answer = self.read(body)
        body.check_all_read()
        return answer


class Resource(NamedTuple):
    """What can be asked of what has an identifier, or of all of it. Raises HTTPError for what there
    is not."""

    method: str
    path: str  # with {identifier}, if it is about one
    act: Callable[[str, str], Mapping[str, Any] | bytes]  # client and identifier -> the answer


@dataclass(frozen=True)
class Site:
    """A model as it is shown to clients.

    Attributes:
      name: of the model.
      endpoints: by path; all are POST.
      models: what `/v1/models` lists.
      metrics: the text of `/metrics`.
      load: how busy it is at this moment, for the page.
      resources: what can be asked of what is kept.
    """

    name: str
    worker: Worker
    endpoints: Mapping[str, Endpoint]
    models: Callable[[], Sequence[Mapping[str, Any]]]
    metrics: Callable[[], Awaitable[bytes]]
    load: Callable[[], Awaitable[Mapping[str, Any]]]
    resources: Sequence[Resource] = ()


# By a field that tells what a body asks for.
_INVOKED = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "text_1": "/v1/score",
    "query": "/v1/rerank",
}
_OF_INPUTS = ("/v1/embeddings", "/classify")


def with_invocations(site: Site) -> Site:
    """The site with SageMaker's path for all that is asked of a model by its other endpoints."""

    def read(body: Body) -> Answer:
        paths = (*(path for field, path in _INVOKED.items() if field in body), *_OF_INPUTS)
        path = next((path for path in paths if path in site.endpoints), None)
        if path is None:
            raise RequestError(f"{site.name} does not do what the body asks for")
        return site.endpoints[path].read(body)

    return replace(site, endpoints={**site.endpoints, "/invocations": Endpoint(read)})


class Recipe(Protocol):
    """A model as the process with the clients must know it. It can be pickled."""

    def open(self, link: Link) -> Site:
        """Makes the site of the model at the other end of the link. Raises LaunchError for files
        that cannot be used."""


def model_entry(name: str, created: int, **facts: Any) -> dict[str, Any]:
    """A model as `/v1/models` has it."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "neuronjax",
        "root": name,
        "parent": None,
        **facts,
    }
