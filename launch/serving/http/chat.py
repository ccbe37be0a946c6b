"""`/v1/chat/completions`: the next message of a conversation."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from launch.chat_template import Rendered, text_of
from launch.errors import DataError
from launch.serving.answers import Piece, TokenLogprob
from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.context import Choice, Reply, Served, Usage
from launch.serving.http.events import Chunks, EventSource
from launch.serving.http.parameters import Wanted, read_wanted
from launch.serving.http.pictures import read_image_part
from launch.serving.http.site import Stream
from launch.serving.http.structure import read_structure
from launch.serving.parsers import Call, Parser, Reader, Segment, Told
from launch.serving.requests import MOST_LOGPROBS, Request
from launch.serving.tools import Tools, read_tools

VARIABLES = ("documents", "reasoning_effort")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True)
class Chat:
    """The parsed body of a request for a chat completion."""

    served: Served
    choice: Choice
    id: str
    wanted: Wanted
    requests: Sequence[Request]
    segments: Sequence[Segment]  # of answers, beside their text
    prompt: str  # that answers go on with, perhaps within a thought
    echo: str = ""  # text before each answer

    @classmethod
    def read(cls, served: Served, body: Body) -> "Chat":
        """Raises RequestError or HTTPError for a body that cannot be answered."""
        choice = served.choose(body)
        tools, messages = _tools(body), _messages(served, body)
        prompt = _render(served, body, messages, tools).text
        form = _form(served, body, tools)
        segments = [*tools.segments(served.tool_parser), *served.reasoning_parser.segments]
        wanted = read_wanted(
            served,
            body,
            max_tokens=body.integer("max_completion_tokens", body.integer("max_tokens")),
            logprobs=_logprobs(body),
        )
        whole, source = _read_prompt(served, body, prompt, messages)
        if len(source) and not (wanted.prompt_logprobs is wanted.truncation is None):
            raise RequestError(
                "prompt_logprobs and truncate_prompt_tokens do not go with images", "messages"
            )
        tokens = wanted.shorten(whole, served.longest)
        if form is None and any(p.has_special for p in _parsers(served, tools)):
            writing = wanted.writing._replace(skip_special_tokens=False)
            wanted = replace(wanted, writing=writing)
        requests = wanted.requests(served, choice, [tokens], form)
        if len(source):
            requests = [replace(request, source=source) for request in requests]
        return cls(
            served,
            choice,
            f"chatcmpl-{served.service.new_id()}",
            wanted,
            requests,
            segments,
            prompt.rstrip() if form is None else "",  # a form begins with the answer
            _echo(body, messages),
        )

    async def whole(self) -> dict[str, Any]:
        """The chat completion as one JSON object."""
        usage = self.usage()
        replies = await self.served.whole_replies(self.requests, self.wanted.writing, usage)
        return {
            **self.head("chat.completion"),
            "choices": [self._choice(index, reply) for index, reply in enumerate(replies)],
            "usage": usage.json(),
            **self.wanted.describe_prompt(self.served, self.requests[0], replies[0].scores),
        }

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

    def _choice(self, index: int, reply: Reply) -> dict[str, Any]:
        thought, text, calls = self.told(reply)
        content, reason = self.echo + text, reply.finished
        message: dict[str, Any] = {"role": "assistant", "content": content, **thoughts(thought)}
        if calls:
            message["content"] = content.strip() or None
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"}
                for call in self.calls(index, calls)
            ]
            reason = "tool_calls"
        return {
            "index": index,
            "message": message,
            "logprobs": self.logprobs(reply.logprobs),
            "finish_reason": reason,
            **self.wanted.describe_ids(reply.tokens),
        }

    def reader(self) -> Reader:
        """What reads an answer as it grows."""
        return Reader(self.segments, self.prompt)

    def told(self, reply: Reply) -> Told:
        """What a whole answer says."""
        return self.reader().feed(reply.text, last=True)

    def calls(self, index: int, calls: Sequence[Call], first: int = 0) -> list[dict[str, Any]]:
        """Calls of tools as a piece of an answer has them, from the `first` one on."""
        request_id, short = self.requests[index].id, self.served.tool_parser.short_ids
        return [
            {
                "index": place,
                "id": f"{request_id[:6]}{place:03}" if short else f"call-{request_id}-{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls, first)
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
        self._readers = [chat.reader() for _ in chat.requests]
        self._calls = [0 for _ in chat.requests]

    def opening(self) -> list[bytes]:
        chat, delta = self._chat, {"role": "assistant", "content": self._chat.echo}
        prompt = chat.wanted.describe_prompt(chat.served, chat.requests[0])
        return [self._event(index, delta, prompt=prompt) for index in range(len(self._readers))]

    def piece(self, index: int, piece: Piece) -> Sequence[bytes]:
        self._usage.add(piece)
        events, is_last = [], piece.finished is not None
        thought, text, calls = self._readers[index].feed(piece.text, last=is_last)
        ids = self._chat.wanted.describe_ids(piece.tokens)
        if thought or text or piece.logprobs or ids:
            logprobs = self._chat.logprobs(piece.logprobs) if piece.logprobs else None
            delta = thoughts(thought) | ({} if thought and not text else {"content": text})
            events.append(self._event(index, delta, logprobs=logprobs, **ids))
        if calls:
            told = self._chat.calls(index, calls, self._calls[index])
            self._calls[index] += len(calls)
            events.append(self._event(index, {"tool_calls": told}))
        if is_last:
            reason = "tool_calls" if self._calls[index] else piece.finished
            events.append(self._event(index, {}, finish_reason=reason))
        return events

    def closing(self) -> Sequence[bytes]:
        wanted = self._chat.wanted.include_usage
        return (self._chunks.usage(self._usage.json()),) if wanted else ()

    def _event(
        self, index: int, delta: Mapping[str, Any], prompt: Mapping[str, Any] = {}, **more: Any
    ) -> bytes:
        """An event with `more` fields of the choice, and the fields of `prompt`."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        usage = self._chat.wanted.describe_usage(self._usage)
        return self._chunks.choice(choice, **usage, **prompt)


def read_conversation(served: Served, body: Body) -> list[int]:
    """The tokens of the conversation of a body. Raises RequestError for one that has none."""
    messages = _messages(served, body)
    prompt = _render(served, body, messages, _tools(body)).text
    tokens, _ = _read_prompt(served, body, prompt, messages)
    return tokens if served.pictures is None else served.pictures.shown(tokens)


def _tools(body: Body) -> Tools:
    return read_tools(body.list("tools"), body.value("tool_choice"))


def _render(
    served: Served, body: Body, messages: Sequence[Mapping[str, Any]], tools: Tools
) -> Rendered:
    more = body.object("chat_template_kwargs").all()
    for name in ("self", "messages", "tools", "add_generation_prompt", "continue_final_message"):
        if name in more:
            raise RequestError(
                f"chat_template_kwargs.{name} is no variable of a template: leave it out",
                "chat_template_kwargs",
            )
    variables = {**more, **_variables(served, body), "tools": list(tools.offered) or None}
    continued = body.flag("continue_final_message")
    prompted = body.flag("add_generation_prompt", not continued)
    try:
        return served.template.render(
            messages,
            add_generation_prompt=prompted,
            continue_final_message=continued,
            **variables,
        )
    except DataError as error:
        raise RequestError(str(error), "messages") from error


def _variables(served: Served, body: Body) -> dict[str, Any]:
    """The body's fields for the template. Raises RequestError for those that it does not read."""
    given = {name: body.value(name) for name in VARIABLES if body.value(name)}
    for name in given:
        if name not in served.template.names:
            raise RequestError(
                f"{name} is not supported: the model's chat template does not read it", name
            )
    return given


def _echo(body: Body, messages: Sequence[Mapping[str, Any]]) -> str:
    """The last message, if answers are to be told with it and it is the assistant's."""
    last = messages[-1]
    return text_of(last["content"]) if body.flag("echo") and last["role"] == "assistant" else ""


def _read_prompt(
    served: Served, body: Body, prompt: str, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[int], np.ndarray | Sequence[int]]:
    """The tokens of a rendered conversation, and the pixels of its images. Templates write the
    marks themselves."""
    marks, tokenizer = body.flag("add_special_tokens"), served.service.tokenizer
    if served.pictures is not None:
        return served.pictures.read(tokenizer, prompt, messages, marks=marks)
    return tokenizer.encode(prompt, marks=marks).tolist(), ()


def _messages(served: Served, body: Body) -> list[dict[str, Any]]:
    messages = body.list("messages")
    if not messages:
        raise body.fail("messages", "a list with at least one message")
    sees = served.pictures is not None
    return [_message(place, message, sees=sees) for place, message in enumerate(messages)]


def _message(place: int, value: Any, *, sees: bool) -> dict[str, Any]:
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
    if sees and value["role"] == "user" and isinstance(content, list):
        return {**value, "content": [_image_or_text(where, part) for part in content]}
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{where}.content must be a string or a list of texts", "messages")
    content = content or ""
    return {**value, "content": [{"type": "text", "text": content}] if sees else content}


def _image_or_text(where: str, part: Any) -> dict[str, Any]:
    return read_image_part(where, part) or {"type": "text", "text": _part(where, part)}


def _part(where: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(
        f"{where}.content: only parts of the type text are supported here; images stand in what "
        "the user says to a model that sees them",
        "messages",
    )


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


def _parsers(served: Served, tools: Tools) -> list[Parser]:
    """The parsers that read answers."""
    return [served.reasoning_parser, *([served.tool_parser] if tools.offered else [])]


def thoughts(text: str) -> dict[str, Any]:
    """The thoughts of an answer, by DeepSeek's name, which vLLM has as well, and its newer one."""
    return dict.fromkeys(("reasoning_content", "reasoning"), text) if text else {}


def _form(served: Served, body: Body, tools: Tools) -> str | None:
    """The grammar of what the tools force, or the body wants."""
    wanted = read_structure(served.service.tokenizer, body)
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
