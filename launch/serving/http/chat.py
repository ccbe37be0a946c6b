"""`/v1/chat/completions`: the next message of a conversation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launch.chat_template import Rendered
from launch.errors import DataError
from launch.serving.answers import Piece, TokenLogprob
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.context import Choice, Served, Usage
from launch.serving.http.events import Chunks, EventSource
from launch.serving.http.parameters import Wanted, read_wanted
from launch.serving.http.site import Stream
from launch.serving.http.structure import read_structure
from launch.serving.requests import MOST_LOGPROBS, Request
from launch.serving.tools import OPENING, Call, Tools, read_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True)
class Chat:
    """One body, read."""

    served: Served
    choice: Choice
    id: str
    wanted: Wanted
    requests: Sequence[Request]
    tools: Tools

    @classmethod
    def read(cls, served: Served, body: Body) -> "Chat":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        choice = served.choose(body)
        tools = read_tools(body.list("tools"), body.value("tool_choice"))
        prompt = _render(served, body, tools).text
        wanted = read_wanted(
            body,
            max_tokens=body.integer("max_completion_tokens", body.integer("max_tokens")),
            logprobs=_logprobs(body),
            stop_tokens=served.stop_tokens,
            vocab_size=served.vocab_size,
        )
        # Templates write the marks themselves.
        tokens = served.service.tokenizer.encode(prompt, marks=False).tolist()
        service = served.service
        requests = wanted.requests(
            [tokens], served.longest, service.new_id, _form(body, tools), choice.adapter
        )
        return cls(served, choice, f"chatcmpl-{service.new_id()}", wanted, requests, tools)

    async def whole(self) -> dict[str, Any]:
        """The answer at once."""
        usage = self.usage()
        replies = await self.served.whole_replies(self.requests, self.wanted.writing, usage)
        choices = [
            self._choice(index, reply.text, reply.logprobs, reply.finished)
            for index, reply in enumerate(replies)
        ]
        return {**self.head("chat.completion"), "choices": choices, "usage": usage.json()}

    def stream(self) -> Stream | None:
        """The answer piece by piece, if that was asked for."""
        if not self.wanted.stream:
            return None
        return EventSource(self.served.replies(self.requests, self.wanted.writing), _Events(self))

    def usage(self) -> Usage:
        """Counts what has been read, before anything is answered."""
        return Usage(prompt=len(self.requests[0].prompt))

    def head(self, kind: str) -> dict[str, Any]:
        """The fields with which the answer and all its pieces begin."""
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.choice.name,
        }

    def _choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        content, calls = self.tools.calls(text)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"}
                for call in self.calls(index, calls)
            ]
            reason = "tool_calls"
        return {
            "index": index,
            "message": message,
            "logprobs": self.logprobs(logprobs),
            "finish_reason": reason,
        }

    def calls(self, index: int, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Calls of tools as a piece of an answer has them."""
        return [
            {
                "index": place,
                "id": f"call-{self.requests[index].id}-{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls)
        ]

    def logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The logprobs of tokens, if they were asked for."""
        if self.wanted.sampling.logprobs is None:
            return None
        return {"content": token_entries(entries), "refusal": None}


class _Events:
    """Tells of an answer while it grows; of text that may be a call when that is complete."""

    def __init__(self, chat: Chat) -> None:
        self._chat, self._usage = chat, chat.usage()
        self._chunks = Chunks(chat.head("chat.completion.chunk"))
        self._held = [Held(chat.tools) for _ in chat.requests]

    def opening(self) -> list[bytes]:
        delta = {"role": "assistant", "content": ""}
        return [self._event(index, delta) for index in range(len(self._held))]

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        events = []
        text = self._held[index].feed(piece.text)
        if text or piece.logprobs:
            events.append(self._event(index, {"content": text}, piece.logprobs))
        if piece.finished is not None:
            text, calls = self._held[index].finish()
            if text:
                events.append(self._event(index, {"content": text}))
            if calls:
                told = self._chat.calls(index, calls)
                events.append(self._event(index, {"tool_calls": told}))
            reason = "tool_calls" if calls else piece.finished
            events.append(self._event(index, {}, reason=reason))
        return events

    def closing(self) -> Sequence[bytes]:
        wanted = self._chat.wanted.include_usage
        return (self._chunks.usage(self._usage.json()),) if wanted else ()

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._chat.logprobs(logprobs) if logprobs else None,
            "finish_reason": reason,
        }
        usage = self._usage.json() if self._chat.wanted.usage_of_each else None
        return self._chunks.choice(choice, usage)


class Held:
    """Text of which a part may be a call of a tool."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._held = tools, ""

    def feed(self, text: str) -> str:
        """Returns the text that is certain to be no call."""
        self._held += text
        if self._tools.forced:
            return ""
        place = self._held.find(OPENING) if self._tools.offered else -1
        if place < 0 and self._tools.offered:
            tails = range(1, len(OPENING))
            kept = max((n for n in tails if self._held.endswith(OPENING[:n])), default=0)
            place = len(self._held) - kept
        if place < 0:
            place = len(self._held)
        text, self._held = self._held[:place], self._held[place:]
        return text

    def finish(self) -> tuple[str, list[Call]]:
        """Returns the text and the calls that are left when the answer is complete."""
        return self._tools.calls(self._held)


def read_conversation(served: Served, body: Body) -> Rendered:
    """Renders the conversation of a body. Raises RequestError for one that has none."""
    return _render(served, body, read_tools(body.list("tools"), body.value("tool_choice")))


def _render(served: Served, body: Body, tools: Tools) -> Rendered:
    messages, more = _messages(body), body.object("chat_template_kwargs").all()
    for name in ("self", "messages", "tools", "add_generation_prompt"):
        if name in more:
            raise RequestError(
                f"chat_template_kwargs.{name} is no variable of a template: leave it out",
                "chat_template_kwargs",
            )
    variables = {**more, "tools": list(tools.offered) or None}
    prompted = body.flag("add_generation_prompt", True)
    try:
        return served.template.render(messages, add_generation_prompt=prompted, **variables)
    except DataError as error:
        raise RequestError(str(error), "messages") from error


def _messages(body: Body) -> list[dict[str, Any]]:
    messages = body.list("messages")
    if not messages:
        raise body.fail("messages", "a list with at least one message")
    return [_message(place, message) for place, message in enumerate(messages)]


def _message(place: int, value: Any) -> dict[str, Any]:
    where = f"messages[{place}]"
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise RequestError(
            f"{where} must be an object with a role of {', '.join(ROLES)}", "messages"
        )
    content, calls = value.get("content"), value.get("tool_calls")
    if not isinstance(calls, list | None):
        raise RequestError(f"{where}.tool_calls must be a list", "messages")
    if content is None and value["role"] != "assistant":
        raise RequestError(f"{where}.content is missing; a string is needed", "messages")
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{where}.content must be a string or a list of texts", "messages")
    return {**value, "content": content or ""}


def _part(where: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(f"{where}.content: only parts of the type text are supported", "messages")


def _logprobs(body: Body) -> int | None:
    count = body.integer("top_logprobs")
    if not body.flag("logprobs"):
        if count is not None:
            raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
        return None
    count = 0 if count is None else count
    if not 0 <= count <= MOST_LOGPROBS:
        raise body.fail("top_logprobs", f"a number from 0 to {MOST_LOGPROBS}")
    return int(count)


def _form(body: Body, tools: Tools) -> str | None:
    """The grammar of what the tools force, or the body wants."""
    wanted = read_structure(body)
    return tools.grammar if tools.forced else wanted


def token_entries(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Describes tokens with their logprobs."""
    return [
        {
            **_token(entry.token, entry.logprob),
            "top_logprobs": [_token(token, value) for token, value in entry.top],
        }
        for entry in entries
    ]


def _token(token: str, logprob: float | None) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
