"""Language models for asynchronous callers: many answers at once, each as a stream of pieces."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from launch.serving.adapters.registry import Registry
from launch.serving.answering import Load
from launch.serving.answers import Answer, Piece, Writing
from launch.serving.errors import ServingError
from launch.serving.http.errors import INTERNAL, HTTPError
from launch.serving.http.link import Link, Mailbox
from launch.serving.messages import AskLoad, Cancel, CheckAdapter, Submit
from launch.serving.requests import FinishReason, Output, Request
from launch.serving.scheduler.limits import SchedulerLimits
from launch.text import Tokenizer


class Service:
    """Answers requests by an engine in another process."""

    def __init__(
        self, link: Link, limits: SchedulerLimits, tokenizer: Tokenizer, registry: Registry
    ) -> None:
        self.link, self.limits = link, limits
        self.tokenizer, self.registry = tokenizer, registry

    def new_id(self) -> str:
        """A name for a request that no other one has, also of another server."""
        return uuid.uuid4().hex

    async def load(self) -> Load:
        """Tells how busy the engine is. Raises ServingError if it has gone."""
        load: Load = await self.link.call(AskLoad())
        return load

    async def load_adapter(self, name: str, path: Path) -> None:
        """Lets clients ask for an adapter. Raises RequestError if it cannot be used, or the name is
        taken."""
        self.registry.check_free(name)
        await self.link.call(CheckAdapter(path))
        self.registry.add(name, path)


Watch = Callable[[Piece], None]
"""Is told of the pieces of an answer."""


class Growing(Protocol):
    """Answers as they grow."""

    @property
    def are_complete(self) -> bool:
        """Whether nothing more comes of any answer."""

    def listen(self, on_news: Callable[[], None]) -> None:
        """Calls `on_news`, which must not raise, whenever there is something to take."""

    def take(self, act: Callable[[int, Piece], None]) -> None:
        """Acts on what has come since the last time: (index of the answer, piece). Raises
        HTTPError if the device fails, ServingError if it has gone."""


async def follow(answers: Growing, act: Callable[[int, Piece], None]) -> None:
    """Acts on every piece when it comes, until the answers are complete. Raises what `take`
    raises."""
    over = asyncio.get_running_loop().create_future()

    def take() -> None:
        if over.done():
            return
        try:
            answers.take(act)
        except Exception as error:  # for who waits
            over.set_exception(error)
        else:
            if answers.are_complete:
                over.set_result(None)

    answers.listen(take)
    await over


class Replies:
    """Answers to requests as they grow (`Growing`). Entering the block asks for them, and leaving
    it early cancels what is under way."""

    def __init__(
        self,
        service: Service,
        requests: Sequence[Request],
        writing: Writing,
        watch: Sequence[Watch],
    ) -> None:
        """`watch` is told of the pieces of each request."""
        self._service, self._requests, self._watch = service, requests, watch
        self._answers = [Answer(service.tokenizer, writing, request) for request in requests]
        self._left = {request.id: index for index, request in enumerate(requests)}
        self._mailbox = Mailbox()
        self._held = ExitStack()

    def __enter__(self) -> "Replies":
        """Raises what `Engine.submit` raises."""
        with ExitStack() as held:
            for request in self._requests:
                self._service.limits.check_request(request)
            held.callback(self._leave)
            for request in self._requests:
                self._service.link.expect(request.id, self._mailbox)
                self._service.link.send(Submit(request))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def are_complete(self) -> bool:
        return not self._left

    def listen(self, on_news: Callable[[], None]) -> None:
        self._mailbox.listen(on_news)

    def take(self, act: Callable[[int, Piece], None]) -> None:
        for output in self._mailbox.take():
            index = self._left.get(output.id)
            if index is None:
                continue
            piece = self._answers[index].feed(output)
            self._watch[index](piece)
            if piece.finished is not None:
                self._end(output, piece)
            act(index, piece)

    def _end(self, output: Output, piece: Piece) -> None:
        """Ends a request of which nothing more comes. Raises HTTPError if it ends with an error."""
        del self._left[output.id]
        if output.finished is None:  # a stop string: the engine knows nothing of it
            self._cancel(output.id, "stop")
        if piece.finished == "error":
            raise HTTPError(INTERNAL, f"the answer could not be completed: {piece.error}")

    def _leave(self) -> None:
        for request in self._requests:
            self._service.link.forget(request.id)
        for request_id in self._left:
            self._cancel(request_id, "cancelled")

    def _cancel(self, request_id: str, reason: FinishReason) -> None:
        with suppress(ServingError):  # an engine that has gone is at nothing any more
            self._service.link.send(Cancel(request_id, reason))
