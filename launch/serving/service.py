"""The engine for asynchronous callers: many answers at once, each as a stream of pieces."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress

from launch.serving.adapters.registry import Registry
from launch.serving.answering import Answering
from launch.serving.answers import Answer, Piece
from launch.serving.requests import Output, Request
from launch.text import Tokenizer


class Mailbox:
    """Outputs for one reader in the event loop; those of a request that the reader has not taken
    yet become one, so that a slow reader never has more than one of each."""

    def __init__(self) -> None:
        self._outputs: dict[str, Output] = {}
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        """Adds an output, and wakes the reader."""
        before = self._outputs.get(output.id)
        self._outputs[output.id] = output if before is None else before.extended(output)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Output]:
        """What has come since the last time; waits until there is something."""
        while not self._outputs:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs


class Dispatcher:
    """Hands what the engine delivers, in its thread, to those who wait in the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receivers: dict[str, Mailbox] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Outputs go to readers in this loop from now on."""
        self._loop = loop

    def deliver(self, outputs: Sequence[Output]) -> None:
        """For the engine."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._spread, outputs)

    def expect(self, request_id: str, mailbox: Mailbox) -> None:
        """Outputs of the request go there."""
        self._receivers[request_id] = mailbox

    def forget(self, request_id: str) -> None:
        """Nobody waits for the request any more."""
        self._receivers.pop(request_id, None)

    def _spread(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            mailbox = self._receivers.get(output.id)
            if mailbox is not None:
                mailbox.put(output)


class Service:
    """Answers requests until it drains."""

    def __init__(
        self,
        engine: Answering,
        dispatcher: Dispatcher,
        tokenizer: Tokenizer,
        registry: Registry | None = None,
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.registry = registry or Registry(0)
        self.draining = False
        self._dispatcher = dispatcher
        self._numbers = itertools.count()

    @property
    def failure(self) -> Exception | None:
        """Why the engine has stopped."""
        return self.engine.failure

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return self.engine.is_idle

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answers are waited for in this loop."""
        self._dispatcher.attach(loop)

    def new_id(self) -> str:
        """A name for a request that no other one has."""
        return str(next(self._numbers))

    async def answer(
        self, requests: Sequence[Request], stops: Sequence[str] = ()
    ) -> AsyncGenerator[tuple[int, Piece], None]:
        """(index of the request, piece) as they come, until every answer is complete.

        Leaving early cancels what is under way. Raises what `Engine.submit` raises.
        """
        with ExitStack() as held:
            for adapter in {request.adapter for request in requests}:
                held.enter_context(self.registry.used(adapter))
            async with aclosing(self._pieces(requests, stops)) as pieces:
                async for index, piece in pieces:
                    yield index, piece

    async def _pieces(
        self, requests: Sequence[Request], stops: Sequence[str]
    ) -> AsyncGenerator[tuple[int, Piece], None]:
        mailbox = Mailbox()
        places = {request.id: index for index, request in enumerate(requests)}
        answers = [Answer(self.tokenizer, stops, request.stop_tokens) for request in requests]
        left = set(places)
        try:
            for request in requests:
                self._dispatcher.expect(request.id, mailbox)
                self.engine.submit(request)
            while left:
                for output in await mailbox.take():
                    if output.id not in left:
                        continue
                    index = places[output.id]
                    piece = answers[index].feed(output)
                    if piece.finished is not None:
                        left.discard(output.id)
                        if output.finished is None:  # a stop string: the engine knows nothing of it
                            self.engine.cancel(output.id, "stop")
                    yield index, piece
        finally:
            for request_id in places:
                self._dispatcher.forget(request_id)
            for request_id in left:
                self.engine.cancel(request_id)
