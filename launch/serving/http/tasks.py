"""The tasks of the process with the clients: to serve them, or to answer a file."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from launch.errors import LaunchError
from launch.program import say
from launch.progress import progress
from launch.serving.batch import Line, answer_all, record
from launch.serving.config import ServerConfig
from launch.serving.http.app import make_app
from launch.serving.http.link import Link
from launch.serving.http.server import Server
from launch.serving.http.site import Recipe, Site
from launch.serving.http.tracing import traced
from launch.serving.listener import address


class Task(Protocol):
    """A task of the process with the clients, which can be pickled."""

    async def run(self, site: Site, link: Link) -> None:
        """Works until the task is done. Raises LaunchError if it cannot be."""


@dataclass(frozen=True)
class Serve:
    """Answers clients until it is told to end."""

    listener: int  # number of the file that this process was started with
    config: ServerConfig
    platform: str

    async def run(self, site: Site, link: Link) -> None:
        """Serves as `Task.run`, until it is told to end."""
        app = make_app(site, self.config)
        with (
            socket.socket(fileno=self.listener) as listener,
            traced(app, self.config.otlp_traces_endpoint, site.name) as app,
        ):
            server = Server(app, link, self.config)
            where = address(listener, self.config)
            say(f"{site.name} at {where} on {self.platform}; Ctrl-C ends it")
            await server.serve([listener])


@dataclass(frozen=True)
class AnswerFile:
    """Answers the requests of a file."""

    lines: Sequence[Line]
    output: Path
    concurrency: int

    async def run(self, site: Site, link: Link) -> None:
        """Answers all lines as `Task.run`."""
        with progress("answers", total=len(self.lines)) as bar, self.output.open("a") as stream:

            def write(line: Line, response: Mapping[str, Any]) -> None:
                stream.write(record(line, response))
                stream.flush()
                bar.update()

            try:
                await answer_all(site, self.lines, write, concurrency=self.concurrency)
            except* LaunchError as errors:
                raise errors.exceptions[0] from None


class Job(NamedTuple):
    """The first message of the process with the device."""

    recipe: Recipe
    task: Task
