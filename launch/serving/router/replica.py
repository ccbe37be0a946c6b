"""A server behind the router: started, watched, started again when it ends."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import aiohttp

from launch.program import say
from launch.serving.channel import Channel
from launch.serving.router.job import ReplicaJob

_POLL_SECONDS = 0.5
_POLL_TIMEOUT = 5.0
"""Seconds that a server may take to say that it is well; its process with the clients does nothing
that takes as long."""
_MISSED_POLLS = 3
"""Polls without an answer, one after the other, that show that a server is stuck."""
_BACK_OFF = (0.0, 1.0, 5.0, 30.0)
"""Seconds to wait before a start, by how many starts before it have ended too soon."""


class Replica:
    """A server on this machine or, without `job`, one that others start at `url`.

    Attributes:
      number: among its neighbours.
      is_up: whether it takes requests.
      restarts: how often it has been started again.
    """

    def __init__(self, number: int, url: str, job: ReplicaJob | None = None) -> None:
        self.number, self.url, self.job = number, url, job
        self.is_up, self.restarts = False, 0
        self.on_up: Callable[[Replica], None] = lambda replica: None
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._session: aiohttp.ClientSession | None = None
        self._complaint = ""

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections to the server, of one event loop."""
        if self._session is None:
            path = self.job.config.uds if self.job is not None else None
            connector = (
                aiohttp.TCPConnector(limit=0)
                if path is None
                else aiohttp.UnixConnector(path=path, limit=0)
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_POLL_TIMEOUT),
                auto_decompress=False,
            )
        return self._session

    async def watch(self) -> None:
        """Keeps the server running, until this is cancelled or, if it cannot be started, for as
        long as it takes to find that out."""
        failures = 0
        while failures < len(_BACK_OFF):
            await asyncio.sleep(_BACK_OFF[failures])
            await self._start()
            was_up = await self._follow()
            await self.stop(0)
            failures = 0 if was_up else failures + 1
            self.restarts += self.job is not None
        say(f"replica {self.number} has ended {failures} times before it was ready: given up")

    async def _start(self) -> None:
        if self.job is None:
            return
        Path(self.job.config.uds or "").unlink(missing_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "launch.serving.router", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the router
            )
        self._channel = Channel(ours)
        self._channel.send(self.job)

    async def _follow(self) -> bool:
        """Returns when it has ended, or is stuck: whether it was up at all."""
        was_up, missed = False, 0
        while missed < _MISSED_POLLS and not await self._ended_within(_POLL_SECONDS):
            is_well = await self.is_well()
            if is_well and not self.is_up and await self._is_of_this_version():
                self.is_up = was_up = True
                self.on_up(self)
            missed = 0 if is_well or not was_up else missed + 1
        if was_up:
            code = None if self._process is None else self._process.returncode
            reason = "does not answer" if code is None else f"has ended with exit code {code}"
            say(f"replica {self.number} {reason}")
        self.is_up = False
        return was_up

    async def _ended_within(self, seconds: float) -> bool:
        if self._process is None:
            await asyncio.sleep(seconds)
            return False
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
            return True
        return False

    async def is_well(self) -> bool:
        """Whether it says that it takes requests."""
        try:
            limit = aiohttp.ClientTimeout(total=_POLL_TIMEOUT)
            async with self.session.get(f"{self.url}/health", timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _is_of_this_version(self) -> bool:
        """Whether its answers have the form that its neighbours' have."""
        if self.job is not None:
            return True
        ours = version("neuronjax")
        with suppress(aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            async with self.session.get(f"{self.url}/version") as response:
                theirs = json.loads(await response.read())["version"]
                if theirs == ours:
                    return True
                self._complain(f"is version {theirs}, and this is {ours}: update one of them")
                return False
        self._complain("is no server of neuronjax: it does not say its version")
        return False

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            say(f"{self.url} {complaint}; it gets no requests")

    async def stop(self, grace: float) -> None:
        """Lets it complete its answers for some seconds, then ends it."""
        self.is_up = False
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)
            try:
                await asyncio.wait_for(process.wait(), grace or None)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def close(self) -> None:
        """Closes the connections to the server."""
        if self._session is not None:
            await self._session.close()
            self._session = None
