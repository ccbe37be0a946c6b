"""Language models for asynchronous callers: many answers at once, each as a stream of pieces."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path

from launch.serving.adapters.registry import Registry
from launch.serving.answering import Load
from launch.serving.answers import Answer, Piece
from launch.serving.errors import ServingError
from launch.serving.http.link import Link, Mailbox
from launch.serving.messages import AskLoad, Cancel, CheckAdapter, PutAdapter, Submit
from launch.serving.requests import FinishReason, Request
from launch.serving.scheduler.limits import SchedulerLimits
from launch.text import Tokenizer


class Service:
    """Answers requests by an engine in another process."""

    def __init__(
        self, link: Link, limits: SchedulerLimits, tokenizer: Tokenizer, registry: Registry
    ) -> None:
        self.link, self.limits = link, limits
        self.tokenizer, self.registry = tokenizer, registry
        self._numbers = itertools.count()

    def new_id(self) -> str:
        """A name for a request that no other one has."""
        return str(next(self._numbers))

    async def load(self) -> Load:
        """How busy the engine is. Raises ServingError if it has gone."""
        load: Load = await self.link.call(AskLoad())
        return load

    async def load_adapter(self, name: str, path: Path) -> None:
        """Lets clients ask for an adapter. Raises RequestError if it cannot be used, or the name or
        all places are taken."""
        await self.link.call(CheckAdapter(path))
        with self.registry.place(name, path) as adapter:
            await self.link.call(PutAdapter(path, adapter.place))

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
        for request in requests:
            self.limits.check_request(request)
        mailbox = Mailbox()
        places = {request.id: index for index, request in enumerate(requests)}
        answers = [Answer(self.tokenizer, stops, request.stop_tokens) for request in requests]
        left = set(places)
        try:
            for request in requests:
                self.link.expect(request.id, mailbox)
                self.link.send(Submit(request))
            while left:
                for output in await mailbox.take():
                    if output.id not in left:
                        continue
                    index = places[output.id]
                    piece = answers[index].feed(output)
                    if piece.finished is not None:
                        left.discard(output.id)
                        if output.finished is None:  # a stop string: the engine knows nothing of it
                            self._cancel(output.id, "stop")
                    yield index, piece
        finally:
            for request_id in places:
                self.link.forget(request_id)
            for request_id in left:
                self._cancel(request_id, "cancelled")

    def _cancel(self, request_id: str, reason: FinishReason) -> None:
        with suppress(ServingError):  # an engine that has gone is at nothing any more
            self.link.send(Cancel(request_id, reason))
