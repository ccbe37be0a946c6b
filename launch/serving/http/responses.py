"""`/v1/responses`: the next message of a conversation, as OpenAI's Responses API tells it."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from launch.serving.answers import Piece, TokenLogprob
from launch.serving.http.bodies import Body
from launch.serving.http.chat import Chat, token_entries
from launch.serving.http.context import Conversation, Served, Usage
from launch.serving.http.events import EventSource
from launch.serving.http.responses_input import as_chat, read_input
from launch.serving.http.site import Resource, Stream
from launch.serving.parsers import Call

_INCOMPLETE = {"length": "max_output_tokens"}  # why an answer is not complete
_NAMED = b"event: %b\ndata: %b\n\n"


@dataclass(frozen=True)
class Response:
    """The parsed body of a request for a response."""

    chat: Chat
    body: Body
    number: str  # of the answer and of all that is in it
    created: int  # Unix time
    messages: Sequence[dict[str, Any]]  # that it answers
    is_kept: bool

    @classmethod
    def read(cls, served: Served, body: Body) -> "Response":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        previous = body.text("previous_response_id")
        kept = None if previous is None else served.responses.get(body.client, previous)
        messages = read_input(body, () if kept is None else kept.messages)
        chat, is_kept = Chat.read(served, as_chat(body, messages)), body.flag("store", True)
        return cls(chat, body, chat.requests[0].id, int(time.time()), messages, is_kept)

    async def whole(self) -> dict[str, Any]:
        """The response as one JSON object."""
        chat, usage = self.chat, self.chat.usage()
        (reply,) = await chat.served.whole_replies(chat.requests, chat.wanted.writing, usage)
        thought, text, calls = chat.told(reply)
        items = [self.call(place, call) for place, call in enumerate(calls)]
        if text.strip() or not calls:
            items.insert(0, self.message(text, reply.logprobs))
        if thought:
            items.insert(0, self.reasoning(thought))
        return self.ended(items, reply.finished, usage)

    def stream(self) -> Stream | None:
        """The answer piece by piece, if that was asked for."""
        chat = self.chat
        if not chat.wanted.stream:
            return None
        asked = chat.served.replies(chat.requests, chat.wanted.writing)
        return EventSource(asked, _Events(self), event=b"%b", ending=b"")

    def ended(self, items: Sequence[Any], finished: str | None, usage: Usage) -> dict[str, Any]:
        """The object of a response that is complete, which is kept if that is wanted."""
        told = self.json(items, finished, usage)
        if self.is_kept:
            messages = read_input(Body({"input": list(items)}), self.messages)
            size = len(orjson.dumps([told, messages]))
            kept = Conversation(told, messages)
            self.chat.served.responses.put(self.body.client, told["id"], kept, size)
        return told

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
            "previous_response_id": values.get("previous_response_id"),
            "reasoning": {"effort": None, "summary": None, **(values.get("reasoning") or {})},
            "store": self.is_kept,
            "temperature": sampling.temperature,
            "text": values.get("text") or {"format": {"type": "text"}},
            "tool_choice": values.get("tool_choice") or "auto",
            "tools": values.get("tools") or [],
            "top_logprobs": sampling.logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else self._usage(usage, items),
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

    def reasoning(self, thought: str | None, status: str = "completed") -> dict[str, Any]:
        """The item of a thought; of one that is yet to come without any."""
        content = [] if thought is None else [{"type": "reasoning_text", "text": thought}]
        told = {"type": "reasoning", "status": status, "summary": [], "content": content}
        return {"id": f"rs_{self.number}", **told}

    def _usage(self, usage: Usage, items: Sequence[Any]) -> dict[str, Any]:
        told, encode = usage.json(), self.chat.served.service.tokenizer.encode
        thoughts = [item["content"][0]["text"] for item in items if item["type"] == "reasoning"]
        thought_tokens = sum(len(encode(thought, marks=False)) for thought in thoughts)
        return {
            **{key: told[key] for key in ("device_seconds",) if key in told},
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.answer,
            "output_tokens_details": {"reasoning_tokens": thought_tokens},
            "total_tokens": usage.prompt + usage.answer,
        }

    def part(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """The content of an item of the output that is text."""
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
        self._reader = response.chat.reader()
        self._calls: list[Call] = []
        self._numbers = itertools.count()
        self._thought, self._text = "", ""
        self._logprobs, self._untold = list[TokenLogprob](), list[TokenLogprob]()
        self._place: int | None = None  # of the item of the text, once that has been announced
        self._finished: str | None = None
        self._items: list[dict[str, Any]] = []

    def opening(self) -> list[bytes]:
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response.json()) for kind in kinds]

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        is_last = piece.finished is not None
        thought, text, calls = self._reader.feed(piece.text, last=is_last)
        self._calls += calls
        events = [*self._think(thought), *self._write(text, piece.logprobs)]
        if is_last:
            self._finished = piece.finished
            if self._place is not None or not self._calls:
                events += self._end_text()
            events += self._end_thought()
            for place, call in enumerate(self._calls):
                events += self._call(place, call)
        return events

    def closing(self) -> Sequence[bytes]:
        told = self._response.ended(self._items, self._finished, self._usage)
        return (self._event(f"response.{told['status']}", response=told),)

    def _think(self, thought: str) -> Iterator[bytes]:
        if not thought:
            return
        if not self._thought:
            item = self._response.reasoning(None, status="in_progress")
            yield self._event("response.output_item.added", output_index=0, item=item)
        self._thought += thought
        yield self._of_thought("delta", delta=thought)

    def _end_thought(self) -> Iterator[bytes]:
        if not self._thought or self._items:
            return
        yield self._of_thought("done", text=self._thought)
        self._items.append(self._response.reasoning(self._thought))
        yield self._event("response.output_item.done", output_index=0, item=self._items[-1])

    def _of_thought(self, what: str, **values: Any) -> bytes:
        where = {"item_id": f"rs_{self._response.number}", "output_index": 0, "content_index": 0}
        return self._event(f"response.reasoning_text.{what}", **where, **values)

    def _write(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[bytes]:
        self._logprobs += logprobs
        self._untold += logprobs
        if not text:
            return
        yield from self._begin_text()
        self._text += text
        told, self._untold = token_entries(self._untold), []
        yield self._of_text("response.output_text.delta", delta=text, logprobs=told)

    def _begin_text(self) -> Iterator[bytes]:
        if self._place is not None:
            return
        yield from self._end_thought()
        self._place = len(self._items)
        item = self._response.message(None, status="in_progress")
        yield self._event("response.output_item.added", output_index=self._place, item=item)
        yield self._of_text("response.content_part.added", part=self._response.part(""))

    def _end_text(self) -> Iterator[bytes]:
        yield from self._begin_text()
        text, logprobs = self._text, self._logprobs
        told, part = token_entries(logprobs), self._response.part(text, logprobs)
        yield self._of_text("response.output_text.done", text=text, logprobs=told)
        yield self._of_text("response.content_part.done", part=part)
        self._items.append(self._response.message(text, logprobs))
        done = {"output_index": self._place, "item": self._items[-1]}
        yield self._event("response.output_item.done", **done)

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
        return self._event(kind, item_id=item, output_index=self._place, content_index=0, **values)

    def _event(self, kind: str, **values: Any) -> bytes:
        told = {"type": kind, "sequence_number": next(self._numbers), **values}
        return _NAMED % (kind.encode(), orjson.dumps(told))


def response_resources(served: Served) -> Sequence[Resource]:
    """What can be asked of responses that are kept."""
    path, responses = "/v1/responses/{identifier}", served.responses
    return (
        Resource("GET", path, lambda client, name: responses.get(client, name).response),
        Resource("DELETE", path, responses.remove),
    )
