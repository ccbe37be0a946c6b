"""`/v1/messages`: Anthropic's Messages API. What it says is said of the answer of a chat."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from launch.serving.answers import Piece
from launch.serving.http.bodies import Body
from launch.serving.http.chat import Chat
from launch.serving.http.context import Served, Usage
from launch.serving.http.events import EventSource
from launch.serving.http.messages_input import as_chat
from launch.serving.http.site import Stream
from launch.serving.parsers import Call

_BESIDE = {"thinking": {"signature": ""}}  # fields of a kind of block beside what it says
_REASONS = {"stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True)
class Message:
    """The parsed body of a request for a message."""

    chat: Chat

    @classmethod
    def read(cls, served: Served, body: Body) -> "Message":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        return cls(Chat.read(served, as_chat(body)))

    async def whole(self) -> dict[str, Any]:
        """The message as one JSON object."""
        chat, usage = self.chat, self.chat.usage()
        (reply,) = await chat.served.whole_replies(chat.requests, chat.wanted.writing, usage)
        thought, text, calls = chat.told(reply)
        blocks = [self.call(place, call) for place, call in enumerate(calls)]
        if text.strip() or not calls:
            blocks.insert(0, {"type": "text", "text": text})
        if thought:
            blocks.insert(0, {"type": "thinking", "thinking": thought, "signature": ""})
        return {**self.head(usage), "content": blocks, **ending(reply.finished, reply.stop, calls)}

    def stream(self) -> Stream | None:
        """The answer piece by piece, if that was asked for."""
        chat = self.chat
        if not chat.wanted.stream:
            return None
        asked = chat.served.replies(chat.requests, chat.wanted.writing)
        return EventSource(asked, _Events(self), event=b"%b", ending=b"")

    def head(self, usage: Usage) -> dict[str, Any]:
        """The fields of the answer but its content and its end."""
        return {
            "id": f"msg_{self.chat.requests[0].id}",
            "type": "message",
            "role": "assistant",
            "model": self.chat.choice.name,
            "usage": _usage(usage),
        }

    def call(self, place: int, call: Call) -> dict[str, Any]:
        """The block of a call of a tool."""
        number = f"toolu_{self.chat.requests[0].id}_{place}"
        return {
            "type": "tool_use",
            "id": number,
            "name": call.name,
            "input": json.loads(call.arguments),
        }


class _Events:
    """Tells of an answer while it grows."""

    def __init__(self, message: Message) -> None:
        self._message, self._usage = message, message.chat.usage()
        self._reader = message.chat.reader()
        self._calls: list[Call] = []
        self._blocks = 0  # that are complete
        self._open = ""  # the kind of the block that grows, if any does
        self._ending: dict[str, Any] = {}

    def opening(self) -> list[bytes]:
        told = {**self._message.head(self._usage), "content": [], **ending(None, None, ())}
        return [_event("message_start", message=told)]

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        is_last = piece.finished is not None
        thought, text, calls = self._reader.feed(piece.text, last=is_last)
        self._calls += calls
        events = [*self._write("thinking", thought), *self._write("text", text)]
        if is_last:
            if self._open:
                events.append(self._end_block())
            for place, call in enumerate(self._calls):
                events += self._call(place, call)
            self._ending = ending(piece.finished, piece.stop, self._calls)
        return events

    def closing(self) -> Sequence[bytes]:
        delta, usage = self._ending, _usage(self._usage)
        return (_event("message_delta", delta=delta, usage=usage), _event("message_stop"))

    def _write(self, kind: str, text: str) -> Iterator[bytes]:
        if not text:
            return
        if self._open != kind:
            if self._open:
                yield self._end_block()
            self._open = kind
            yield self._begin_block({"type": kind, kind: "", **_BESIDE.get(kind, {})})
        yield self._grow_block({"type": f"{kind}_delta", kind: text})

    def _call(self, place: int, call: Call) -> Iterator[bytes]:
        yield self._begin_block({**self._message.call(place, call), "input": {}})
        yield self._grow_block({"type": "input_json_delta", "partial_json": call.arguments})
        yield self._end_block()

    def _begin_block(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", index=self._blocks, content_block=block)

    def _grow_block(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _end_block(self) -> bytes:
        self._blocks, self._open = self._blocks + 1, ""
        return _event("content_block_stop", index=self._blocks - 1)


def ending(reason: str | None, stop: str | None, calls: Sequence[Call]) -> dict[str, Any]:
    """Why an answer has ended; None of one under way."""
    told = "tool_use" if calls else "stop_sequence" if stop else _REASONS.get(reason or "")
    return {"stop_reason": told, "stop_sequence": None if calls else stop}


def _event(kind: str, **values: Any) -> bytes:
    told = orjson.dumps({"type": kind, **values})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.answer,
    }
