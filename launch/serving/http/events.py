"""Answers of language models piece by piece: what is told of each as OpenAI's chunks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import orjson

from launch.serving.answers import Piece
from launch.serving.http.service import Growing


class Chunks:
    """The chunks of one stream as JSON; what all begin with is written once."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = orjson.dumps(head)[:-1] + b',"choices":['

    def choice(self, choice: Mapping[str, Any], **more: Any) -> bytes:
        """The chunk that tells of one choice, with `more` fields beside it."""
        told = [b',"%b":%b' % (name.encode(), orjson.dumps(more[name])) for name in more]
        return b"%b%b]%b}" % (self._head, orjson.dumps(choice), b"".join(told))

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The chunk that tells what all answers took."""
        return b'%b],"usage":%b}' % (self._head, orjson.dumps(usage))


class Teller(Protocol):
    """What is told of answers, as JSON of events."""

    def opening(self) -> list[bytes]:
        """What is sent before the first piece."""

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        """What is sent for a piece of one answer."""

    def closing(self) -> Sequence[bytes]:
        """What is sent after the last piece."""


class EventSource:
    """The `Stream` of an answer as server-sent events."""

    def __init__(
        self,
        asked: AbstractContextManager[Growing],
        teller: Teller,
        *,
        event: bytes = b"data: %b\n\n",
        ending: bytes = b"data: [DONE]\n\n",
    ) -> None:
        """`event`: as each thing that is told is sent; `ending`: after all of them."""
        self._asked, self._teller = asked, teller
        self._event, self.ending = event, ending
        self._held = ExitStack()
        self._events: list[bytes] = []

    def __enter__(self) -> "EventSource":
        self._replies = self._held.enter_context(self._asked)
        self._events = self._teller.opening()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def is_complete(self) -> bool:
        return self._replies.are_complete

    def listen(self, on_news: Callable[[], None]) -> None:
        self._replies.listen(on_news)

    def take(self) -> bytes:
        self._replies.take(self._tell)
        if self._replies.are_complete:
            self._events.extend(self._teller.closing())
        events, self._events = self._events, []
        return b"".join([self._event % event for event in events])

    def _tell(self, index: int, piece: Piece) -> None:
        self._events += self._teller.piece(index, piece)
