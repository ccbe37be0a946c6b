"""`/v1/files` and `/v1/batches`: many requests in a file, answered one after the other."""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from launch.errors import LaunchError
from launch.serving.batch import Line, answer_all, parse_lines, record
from launch.serving.errors import RequestError, ServingError
from launch.serving.http.bodies import Body
from launch.serving.http.forms import File, parse_form
from launch.serving.http.site import Endpoint, Resource, Site, WholeAnswer, parse_json
from launch.serving.http.store import Store

FILES, BATCHES = "/v1/files", "/v1/batches"
MOST_FILE_BYTES, MOST_KEPT_BYTES = 64 << 20, 256 << 20
AT_ONCE = 64  # lines of a batch that are answered
_BATCH_BYTES = 1 << 10  # that a batch takes beside its files


class Stored(NamedTuple):
    """A file, and what is told of it."""

    described: Mapping[str, Any]
    data: bytes


@dataclass
class Batch:
    """A batch under way, or over."""

    described: dict[str, Any]
    counts: dict[str, int]
    task: "asyncio.Future[None] | None" = None
    output: dict[bool, bytearray] = field(default_factory=lambda: {True: bytearray()})

    def reach(self, status: str) -> None:
        """Notes the status, and when it was reached."""
        self.described |= {"status": status, f"{status}_at": int(time.time())}

    def json(self) -> dict[str, Any]:
        """The batch as OpenAI's JSON object."""
        return {**self.described, "request_counts": self.counts}


class Archive:
    """The files and batches of all clients of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.files: Store[Stored] = Store("file", MOST_KEPT_BYTES)
        self.batches: Store[Batch] = Store("batch", 1 << 20)

    def keep(self, client: str, data: bytes, name: str, purpose: str) -> dict[str, Any]:
        """Keeps a file; what is told of it."""
        identifier = f"file-{uuid.uuid4().hex}"
        told = {
            "id": identifier,
            "object": "file",
            "bytes": len(data),
            "created_at": int(time.time()),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        self.files.put(client, identifier, Stored(told, data), len(data))
        return told

    def begin(self, client: str, batch: Batch, lines: list[Line]) -> None:
        """Starts to answer a batch."""
        self.batches.put(client, batch.described["id"], batch, _BATCH_BYTES)
        batch.reach("in_progress")
        batch.task = asyncio.ensure_future(self._answer(client, batch, lines))

    async def _answer(self, client: str, batch: Batch, lines: list[Line]) -> None:
        def write(line: Line, response: Mapping[str, Any]) -> None:
            is_answer = response["status_code"] == 200
            batch.counts["completed" if is_answer else "failed"] += 1
            kept = batch.output.setdefault(is_answer, bytearray())
            kept += record(line, response).encode()

        end = "failed"
        try:
            await answer_all(self.site, lines, write, concurrency=AT_ONCE, client=client)
            end = "completed"
        except* LaunchError as errors:
            told = {"code": "server_error", "message": str(errors.exceptions[0])}
            batch.described["errors"] = {"object": "list", "data": [told]}
        except* asyncio.CancelledError:
            end = "cancelled"
        finally:
            for is_answer, name in ((True, "output"), (False, "error")):
                if data := batch.output.get(is_answer):
                    kept = self.keep(client, bytes(data), f"{name}.jsonl", "batch_output")
                    batch.described[f"{name}_file_id"] = kept["id"]
            batch.reach(end)

    def cancel(self, client: str, identifier: str) -> dict[str, Any]:
        """Ends a batch early; lines that have an answer keep it."""
        batch = self.batches.get(client, identifier)
        if batch.task is not None and not batch.task.done():
            batch.task.cancel()
            batch.reach("cancelling")
        return batch.json()

    def resources(self) -> Iterator[Resource]:
        """What can be asked of files and batches."""
        one_file, one_batch = f"{FILES}/{{identifier}}", f"{BATCHES}/{{identifier}}"
        files, batches = self.files, self.batches
        yield Resource(
            "GET", FILES, lambda client, _: _list_object(f.described for f in files.of(client))
        )
        yield Resource(
            "GET", one_file, lambda client, name: dict(files.get(client, name).described)
        )
        yield Resource("DELETE", one_file, files.remove)
        yield Resource(
            "GET", f"{one_file}/content", lambda client, name: files.get(client, name).data
        )
        yield Resource(
            "GET", BATCHES, lambda client, _: _list_object(b.json() for b in batches.of(client))
        )
        yield Resource("GET", one_batch, lambda client, name: batches.get(client, name).json())
        yield Resource("POST", f"{one_batch}/cancel", self.cancel)


@dataclass(frozen=True)
class Upload(WholeAnswer):
    """The parsed body of a request to keep a file."""

    archive: Archive
    client: str
    file: File
    purpose: str

    @classmethod
    def read(cls, archive: Archive, body: Body) -> "Upload":
        """Raises RequestError for a form without a file."""
        file = body.value("file")
        if not isinstance(file, File):
            raise body.fail("file", "a file")
        return cls(archive, body.client, file, body.text("purpose", "batch"))

    async def whole(self) -> dict[str, Any]:
        """Keeps the file, and returns it as OpenAI's JSON object."""
        return self.archive.keep(self.client, self.file.data, self.file.name, self.purpose)


@dataclass(frozen=True)
class Creation(WholeAnswer):
    """The parsed body of a request to begin a batch."""

    archive: Archive
    client: str
    endpoint: str
    source: str  # name of the file
    lines: list[Line]
    metadata: Any

    @classmethod
    def read(cls, archive: Archive, body: Body) -> "Creation":
        """Raises RequestError or HTTPError for a file that is not there, or none of a batch."""
        endpoint, source = body.text("endpoint", ""), body.text("input_file_id", "")
        own = archive.site.endpoints
        known = [path for path, treated in own.items() if treated.parse is parse_json]
        if endpoint not in known:
            raise body.fail("endpoint", f"one of {', '.join(known)}")
        body.text("completion_window")
        try:
            text = archive.files.get(body.client, source).data.decode()
            lines = parse_lines(text, source)
        except (ServingError, UnicodeDecodeError) as error:
            raise RequestError(f"the file is no batch: {error}", "input_file_id") from error
        others = [line.custom_id for line in lines if line.url != endpoint]
        if others or not lines:
            what = f"the line {others[0]!r} has another url" if others else "it has no lines"
            raise RequestError(f"the file is no batch of {endpoint}: {what}", "input_file_id")
        return cls(archive, body.client, endpoint, source, lines, body.value("metadata"))

    async def whole(self) -> dict[str, Any]:
        """The batch, which is answered from now on."""
        now = int(time.time())
        described = {
            "id": f"batch_{uuid.uuid4().hex}",
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": None,
            "input_file_id": self.source,
            "completion_window": "24h",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "metadata": self.metadata,
        }
        batch = Batch(described, {"total": len(self.lines), "completed": 0, "failed": 0})
        self.archive.begin(self.client, batch, self.lines)
        return batch.json()


def with_batches(site: Site) -> Site:
    """The site with the paths of files and batches, for requests of its other endpoints."""
    archive = Archive(site)
    more = {
        FILES: Endpoint(partial(Upload.read, archive), parse_form, MOST_FILE_BYTES),
        BATCHES: Endpoint(partial(Creation.read, archive)),
    }
    return replace(
        site,
        endpoints={**site.endpoints, **more},
        resources=[*site.resources, *archive.resources()],
    )


def _list_object(entries: Iterator[Any]) -> dict[str, Any]:
    data = list(entries)
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": False, **ends}
