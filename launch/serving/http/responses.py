"""`/v1/responses`: the next message of a conversation, as OpenAI's Responses API tells it."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from launch.serving.answers import Piece, TokenLogprob
from launch.serving.http.bodies import Body
from launch.serving.http.chat import Chat, Held, token_entries
from launch.serving.http.context import Served, Usage
from launch.serving.http.events import EventSource
from launch.serving.http.responses_input import as_chat
from launch.serving.http.site import Stream
from launch.serving.tools import Call

_INCOMPLETE = {"length": "max_output_tokens"}  # why an answer is not complete
_NAMED = b"event: %b\ndata: %b\n\n"


@dataclass(frozen=True)
class Response:
    """One body, read."""

    chat: Chat
    body: Body
    number: str  # of the answer and of all that is in it
    created: int  # Unix time

    @classmethod
    def read(cls, served: Served, body: Body) -> "Response":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        chat = Chat.read(served, as_chat(body))
        return cls(chat, body, chat.requests[0].id, int(time.time()))

    async def whole(self) -> dict[str, Any]:
        """The answer at once."""
        chat, usage = self.chat, self.chat.usage()
        (reply,) = await chat.served.whole_replies(chat.requests, chat.wanted.writing, usage)
        text, calls = chat.tools.calls(reply.text)
        items = [self.call(place, call) for place, call in enumerate(calls)]
        if text or not calls:
            items.insert(0, self.message(text, reply.logprobs))
        return self.json(items, reply.finished, usage)

    def stream(self) -> Stream | None:
        """The answer piece by piece, if that was asked for."""
        chat = self.chat
        if not chat.wanted.stream:
            return None
        asked = chat.served.replies(chat.requests, chat.wanted.writing)
        return EventSource(asked, _Events(self), event=b"%b", ending=b"")

    def json(
        self,
        items: Sequence[Any] = (),
        finished: str | None = None,
        usage: Usage | None = None,
    ) -> dict[str, Any]:
        """OpenAI's object: under way until it is finished."""
        values, sampling = self.body.all(), self.chat.wanted.sampling
        reason = _INCOMPLETE.get(finished or "")
        status = "in_progress" if finished is None else "incomplete" if reason else "completed"
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": values.get("instructions"),
            "max_output_tokens": self.chat.wanted.max_tokens,
            "metadata": values.get("metadata") or {},
            "model": self.chat.choice.name,
            "output": list(items),
            "parallel_tool_calls": values.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": values.get("text") or {"format": {"type": "text"}},
            "tool_choice": values.get("tool_choice") or "auto",
            "tools": values.get("tools") or [],
            "top_logprobs": sampling.logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": values.get("user"),
        }

    def message(
        self, text: str | None, logprobs: Sequence[TokenLogprob] = (), status: str = "completed"
    ) -> dict[str, Any]:
        """The item of a text; of one that is yet to come without any."""
        return {
            "id": f"msg_{self.number}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [] if text is None else [self.part(text, logprobs)],
        }

    def part(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """The content of such an item."""
        told = token_entries(logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": told}

    def call(self, place: int, call: Call, status: str = "completed") -> dict[str, Any]:
        """The item of a call of a tool; of one that is yet to come without arguments."""
        return {
            "id": f"fc_{self.number}-{place}",
            "type": "function_call",
            "status": status,
            "call_id": f"call_{self.number}-{place}",
            "name": call.name,
            "arguments": call.arguments if status == "completed" else "",
        }


class _Events:
    """Tells of an answer while it grows."""

    def __init__(self, response: Response) -> None:
        self._response, self._usage = response, response.chat.usage()
        self._held = Held(response.chat.tools)
        self._numbers = itertools.count()
        self._text, self._logprobs = "", list[TokenLogprob]()
        self._has_text = False  # the item of the text has been announced
        self._finished: str | None = None
        self._items: list[dict[str, Any]] = []

    def opening(self) -> list[bytes]:
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response.json()) for kind in kinds]

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        events = list(self._write(self._held.feed(piece.text), piece.logprobs))
        if piece.finished is not None:
            self._finished = piece.finished
            text, calls = self._held.finish()
            events += self._write(text)
            if self._has_text or not calls:
                events += self._end_text()
            for place, call in enumerate(calls):
                events += self._call(place, call)
        return events

    def closing(self) -> Sequence[bytes]:
        told = self._response.json(self._items, self._finished, self._usage)
        return (self._event(f"response.{told['status']}", response=told),)

    def _write(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[bytes]:
        self._logprobs += logprobs
        if not (text or logprobs):
            return
        yield from self._begin_text()
        self._text += text
        told = token_entries(logprobs)
        yield self._of_text("response.output_text.delta", delta=text, logprobs=told)

    def _begin_text(self) -> Iterator[bytes]:
        if self._has_text:
            return
        self._has_text = True
        item = self._response.message(None, status="in_progress")
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._of_text("response.content_part.added", part=self._response.part(""))

    def _end_text(self) -> Iterator[bytes]:
        yield from self._begin_text()
        text, logprobs = self._text, self._logprobs
        told, part = token_entries(logprobs), self._response.part(text, logprobs)
        yield self._of_text("response.output_text.done", text=text, logprobs=told)
        yield self._of_text("response.content_part.done", part=part)
        self._items.append(self._response.message(text, logprobs))
        yield self._event("response.output_item.done", output_index=0, item=self._items[-1])

    def _call(self, place: int, call: Call) -> Iterator[bytes]:
        index, item = len(self._items), self._response.call(place, call)
        where = {"output_index": index, "item_id": item["id"]}
        opened = self._response.call(place, call, "in_progress")
        kind = "response.function_call_arguments"
        yield self._event("response.output_item.added", output_index=index, item=opened)
        yield self._event(f"{kind}.delta", **where, delta=call.arguments)
        yield self._event(f"{kind}.done", **where, name=call.name, arguments=call.arguments)
        self._items.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _of_text(self, kind: str, **values: Any) -> bytes:
        item = f"msg_{self._response.number}"
        return self._event(kind, item_id=item, output_index=0, content_index=0, **values)

    def _event(self, kind: str, **values: Any) -> bytes:
        told = {"type": kind, "sequence_number": next(self._numbers), **values}
        return _NAMED % (kind.encode(), orjson.dumps(told))


def _usage(usage: Usage) -> dict[str, Any]:
    told = usage.json()
    more = {key: told[key] for key in ("device_seconds",) if key in told}
    return {
        **more,
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.answer,
    }
