"""Many requests from a file, answers into another: lines of JSON as OpenAI's batch API has them.

In:  {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {…}}
Out: {"id": …, "custom_id": "a", "response": {"status_code": 200, "body": {…}}, "error": null}

A line is written when its answer is complete, so a run that was interrupted goes on with those that
have none. A body that cannot be answered has its error in the line and stops nobody else.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from launch.errors import LaunchError
from launch.serving.errors import CrowdedError, RequestError, ServingError
from launch.serving.http.bodies import Body
from launch.serving.http.errors import CROWDED, OVERLOADED, TIMEOUT, describe
from launch.serving.http.site import Site, parse_json

TRIED_AGAIN = (CROWDED.status, OVERLOADED.status, TIMEOUT.status)
"""Statuses of answers that another run may get a better one for."""


class Line(NamedTuple):
    """A request of the file."""

    custom_id: str
    url: str
    body: Mapping[str, Any]


def read_lines(file: Path) -> list[Line]:
    """The requests. Raises ServingError for a line that is none, or an id that comes twice."""
    try:
        return parse_lines(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ServingError(f"the requests in {file} cannot be read: {error}") from error


def parse_lines(data: str, file: str) -> list[Line]:
    """The requests in a file's text; raises as `read_lines`."""
    lines: dict[str, Line] = {}
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        line = _line(text, f"{file}:{number}")
        if line.custom_id in lines:
            raise ServingError(f"{file}:{number}: the custom_id {line.custom_id!r} came before")
        lines[line.custom_id] = line
    return list(lines.values())


def answered(file: Path) -> set[str]:
    """The ids that have an answer already. A last line that was cut off, and those that only say
    that the server had no time, are taken out of the file."""
    if not file.exists():
        return set()
    data = file.read_bytes()
    lines = [line for line in data.rpartition(b"\n")[0].splitlines() if line.strip()]
    try:
        records = [json.loads(line) for line in lines]
        kept = [r["response"]["status_code"] not in TRIED_AGAIN for r in records]
        left = b"".join(line + b"\n" for line, keep in zip(lines, kept, strict=True) if keep)
        if left != data:
            fresh = file.with_name(f"{file.name}.fresh")
            fresh.write_bytes(left)
            fresh.replace(file)
        return {r["custom_id"] for r, keep in zip(records, kept, strict=True) if keep}
    except (ValueError, TypeError, KeyError) as error:
        raise ServingError(
            f"{file} is not an output of this program ({error!r}). Give another --output."
        ) from error


def record(line: Line, response: Mapping[str, Any]) -> str:
    """The line of an answer."""
    head = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id}
    return json.dumps({**head, "response": response, "error": None}) + "\n"


Write = Callable[[Line, Mapping[str, Any]], None]


async def answer_all(
    site: Site, lines: Iterable[Line], write: Write, *, concurrency: int, client: str = ""
) -> None:
    """Writes an answer for each line, in the order in which they are complete; `client` asks."""
    left = iter(lines)
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_answer_some(site, left, write, client))


async def _answer_some(site: Site, lines: Iterator[Line], write: Write, client: str) -> None:
    for line in lines:
        try:
            await _answer(site, line, write, client)
        except LaunchError as error:
            if site.worker.failure is not None:
                raise
            status, body = describe(error)
            write(line, {"status_code": status, "body": body})


async def _answer(site: Site, line: Line, write: Write, client: str) -> None:
    """Answers a line, when its client may ask. Raises LaunchError if it cannot be answered."""
    while True:
        try:
            endpoint = site.endpoints.get(line.url)
            if endpoint is None or endpoint.parse is not parse_json:
                raise RequestError(
                    f"url is {line.url!r}; {site.name} has {', '.join(site.endpoints)}", "url"
                )
            body = await endpoint.read_all(Body(line.body, client=client)).whole()
        except CrowdedError as error:
            await asyncio.sleep(error.seconds)
        else:
            write(line, {"status_code": 200, "body": body})
            return


def _line(text: str, where: str) -> Line:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ServingError(f"{where} is not JSON: {error}") from error
    fields = (("custom_id", str), ("url", str), ("body", dict))
    if not isinstance(values, dict):
        raise ServingError(f"{where} is not a JSON object")
    for name, kind in fields:
        if not isinstance(values.get(name), kind):
            raise ServingError(f"{where} has no {name}, which must be a {kind.__name__}")
    return Line(values["custom_id"], values["url"], values["body"])
