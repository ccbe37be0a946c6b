"""The process with the device, seen from the event loop of the one with its clients."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

from launch.errors import LaunchError
from launch.serving.channel import Unpacker, packed
from launch.serving.errors import ServingError
from launch.serving.messages import (
    AskLoad,
    Call,
    CheckAdapter,
    Command,
    Compute,
    Drain,
    Halt,
    Outputs,
    Raised,
    Refused,
    Returned,
    Stopped,
    Withdraw,
)
from launch.serving.requests import Output

GONE = "the process with the device has ended"


class Mailbox:
    """Outputs for one reader in the event loop; those of a request that the reader has not taken
    yet become one, so that a slow reader never has more than one of each."""

    def __init__(self) -> None:
        self._outputs: dict[str, Output] = {}
        self._error: LaunchError | None = None
        self._on_news: Callable[[], None] = lambda: None

    def listen(self, on_news: Callable[[], None]) -> None:
        """Calls `on_news` whenever there is something to take; at once if there is already."""
        self._on_news = on_news
        if self._outputs or self._error is not None:
            on_news()

    def put(self, output: Output) -> None:
        """Adds an output, of which nobody is told yet."""
        before = self._outputs.get(output.id)
        self._outputs[output.id] = output if before is None else Output.joined((before, output))

    def tell(self) -> None:
        """Tells the reader of what has been put."""
        self._on_news()

    def fail(self, error: LaunchError) -> None:
        """Gives the reader an error, after which nothing more comes."""
        self._error = error
        self._on_news()

    def take(self) -> list[Output]:
        """What has come since the last time. Raises the error if that is all that has come."""
        if not self._outputs and self._error is not None:
            raise self._error
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs


class Link(asyncio.Protocol):
    """Sends commands, and hands out what comes back. Of one event loop."""

    def __init__(self) -> None:
        self.draining = False  # no new requests are taken
        self.failure: Exception | None = None  # why nothing is answered any more
        self.on_drain: Callable[[str], None] = lambda why: None
        self.on_halt: Callable[[], None] = lambda: None
        self.on_loss: Callable[[], None] = lambda: None
        self._transport: asyncio.WriteTransport | None = None
        self._unpacker = Unpacker()
        self._unsent: list[bytes] = []
        self._numbers = itertools.count()
        self._mailboxes: dict[str, Mailbox] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._acts: dict[type, Callable[[Any], None]] = {
            Outputs: self._spread,
            Refused: self._refuse,
            Returned: self._return,
            Raised: self._raise,
            Stopped: self._stop,
            Drain: lambda drain: self.on_drain(drain.why),
            Halt: lambda _: self.on_halt(),
        }

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._mailboxes and not self._calls

    def send(self, command: Command) -> None:
        """Never waits: what is sent in one turn of the loop goes in one piece, so that the other
        process wakes up once. Raises ServingError if it has gone."""
        if self._transport is None:
            raise ServingError(GONE)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(packed(command))

    async def call(self, wanted: Compute | AskLoad | CheckAdapter) -> Any:
        """The result; who is cancelled does not want it any more.

        Raises what the other process raises, and ServingError if it has gone.
        """
        number = next(self._numbers)
        self.send(Call(number, wanted))
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        except asyncio.CancelledError:
            if self._transport is not None:
                self.send(Withdraw(number))
            raise
        finally:
            self._calls.pop(number, None)

    def expect(self, request_id: str, mailbox: Mailbox) -> None:
        """Outputs of the request go there."""
        self._mailboxes[request_id] = mailbox

    def forget(self, request_id: str) -> None:
        """Forgets a request that nobody waits for any more."""
        self._mailboxes.pop(request_id, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are none by name

    def data_received(self, data: bytes) -> None:
        for report in self._unpacker.feed(data):
            self._acts[type(report)](report)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.failure = error = ServingError(GONE)
        self.give_up(error)
        self.on_loss()

    def give_up(self, error: LaunchError) -> None:
        """Whoever waits for something gets the error."""
        for mailbox in set(self._mailboxes.values()):
            mailbox.fail(error)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)

    def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if self._transport is not None:
            self._transport.write(data)

    def _spread(self, report: Outputs) -> None:
        told: dict[Mailbox, None] = {}
        for output in report.outputs:
            mailbox = self._mailboxes.get(output.id)
            if mailbox is not None:
                mailbox.put(output)
                told[mailbox] = None
        for mailbox in told:
            mailbox.tell()

    def _refuse(self, report: Refused) -> None:
        mailbox = self._mailboxes.get(report.request_id)
        if mailbox is not None:
            mailbox.fail(report.error)

    def _return(self, report: Returned) -> None:
        future = self._calls.get(report.number)
        if future is not None and not future.done():
            future.set_result(report.value)

    def _raise(self, report: Raised) -> None:
        future = self._calls.get(report.number)
        if future is not None and not future.done():
            future.set_exception(report.error)

    def _stop(self, report: Stopped) -> None:
        self.failure = ServingError(report.reason)
