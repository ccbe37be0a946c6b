"""Thoughts and calls of tools in the texts of models, as each family writes them; the names are
those of vLLM's parsers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One call of a tool."""

    name: str
    arguments: str  # JSON


class Segment(NamedTuple):
    """A part of a text that is not for its reader: its marks, and what stands between them."""

    opening: str
    closing: str | None = ""  # None: it goes on to the end of the text; empty: it is a mark alone
    calls: Callable[[str], list[Call]] | None = None  # None: what stands there is a thought
    only_first: bool = False  # further on this is text


class Parser(NamedTuple):
    """The way in which a family of models writes.

    Attributes:
      segments: what stands beside text.
      in_template: what the chat templates of the family hold.
      has_special: the marks are special tokens, which answers do not show by themselves.
      short_ids: calls are identified by nine letters and digits, which templates insist on.
    """

    segments: Sequence[Segment]
    in_template: str
    has_special: bool = False
    short_ids: bool = False


class Told(NamedTuple):
    """What a piece of a text says."""

    thought: str = ""
    text: str = ""
    calls: Sequence[Call] = ()


class Reader:
    """A reader of one text as it grows."""

    def __init__(self, segments: Sequence[Segment], prompt: str = "") -> None:
        """A text that goes on with a prompt may begin within a thought."""
        self._segments = segments
        self._held = ""  # it may belong to a mark, or to a call
        self._inside = next(
            (
                segment
                for segment in segments
                if segment.closing and not segment.calls and prompt.endswith(segment.opening)
            ),
            None,
        )
        self._has_begun = False
        self._skips_space = self._inside is not None

    def feed(self, text: str, *, last: bool) -> Told:
        """What is certain of the text until now, and was not told before."""
        self._held += text
        thoughts, texts, calls = "", "", list[Call]()
        while self._held or self._inside or not last:
            segment = self._inside
            if segment is None:
                texts += self._told(self._until_mark(last))
                if self._inside is None:
                    break
                continue
            end = -1 if segment.closing is None else self._held.find(segment.closing)
            if end < 0 and not last:
                if not segment.calls:
                    kept = _overlap(self._held, segment.closing)
                    thoughts += self._told(self._take(len(self._held) - kept))
                break
            closing = segment.closing if end >= 0 and segment.closing else ""
            body = self._take(end if end >= 0 else len(self._held))
            self._take(len(closing))
            if segment.calls:
                made = segment.calls(segment.opening + body)
                calls += made
                texts += "" if made else segment.opening + body + closing
            else:
                thoughts += self._told(body)
            self._inside, self._skips_space = None, True
        return Told(thoughts, texts, calls)

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _told(self, text: str) -> str:
        """A text without the space between it and a mark before it."""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        self._has_begun |= bool(text.strip())
        return text

    def _until_mark(self, last: bool) -> str:
        """The text before the next mark, which is entered if it is complete."""
        held = self._held
        usable = [s for s in self._segments if not (s.only_first and self._has_begun)]
        marks = [
            (place, -len(segment.opening), segment)
            for segment in usable
            if (place := held.find(segment.opening)) >= 0
            and not (segment.only_first and held[:place].strip())
        ]
        place, _, segment = min(marks, key=lambda mark: mark[:2], default=(len(held), 0, None))
        if not last:
            begun = len(held) - max((_overlap(held, s.opening) for s in usable), default=0)
            if begun <= place and begun < len(held):  # it may become a mark, or a longer one
                return self._take(begun)
        text = self._take(place)
        if segment is not None:
            self._inside = segment
            self._take(len(segment.opening))
        return text


def _overlap(text: str, mark: str | None) -> int:
    """How many characters at the end of a text begin a mark, but are not all of it."""
    sizes = range(min(len(text), len(mark or "") - 1), 0, -1)
    return next((size for size in sizes if mark and text.endswith(mark[:size])), 0)


def call_of(value: Any) -> Call | None:
    """A call from the JSON of it."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def json_calls(text: str) -> list[Call]:
    """The calls in JSON, one object after the other or a list of them, behind a mark; none if
    anything there is no call."""
    start = re.search(r"[\[{]\s*[{\"]", text)
    values, rest = [], text[start.start() :] if start else ""
    while rest := rest.strip(" \n;,"):
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return []
        values += value if isinstance(value, list) else [value]
        rest = rest[end:]
    calls = [call for value in values if (call := call_of(value))]
    return calls if len(calls) == len(values) else []


def _mistral_calls(text: str) -> list[Call]:
    """A list in JSON or, of newer models, names with the arguments behind each."""
    calls = []
    for part in text.split("[TOOL_CALLS]")[1:]:
        named = re.fullmatch(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", part, re.S)
        calls += _named_call(*named.groups()) if named else json_calls(part)
    return calls


def _harmony_calls(text: str) -> list[Call]:
    named = re.search(r"functions\.([\w.-]+).*?<\|message\|>(.*)", text, re.S)
    return _named_call(*named.groups()) if named else []


def _named_call(name: str, arguments: str) -> list[Call]:
    try:
        json.loads(arguments)
    except ValueError:
        return []
    return [Call(name, arguments.strip())]


_FINAL, _START = "<|channel|>final<|message|>", "<|start|>assistant"
TOOL_PARSERS: Mapping[str, Parser] = {
    "hermes": Parser([Segment("<tool_call>", "</tool_call>", json_calls)], "<tool_call>"),
    "llama3_json": Parser(
        [
            Segment("<|python_tag|>", None, json_calls),
            Segment('{"name"', None, json_calls, only_first=True),
        ],
        "<|python_tag|>",
        has_special=True,
    ),
    "mistral": Parser(
        [Segment("[TOOL_CALLS]", None, _mistral_calls)],
        "[TOOL_CALLS]",
        has_special=True,
        short_ids=True,
    ),
    "openai": Parser(
        [
            Segment("<|channel|>commentary to=functions.", "<|call|>", _harmony_calls),
            Segment(f"{_START} to=functions.", "<|call|>", _harmony_calls),
            Segment(" to=functions.", "<|call|>", _harmony_calls, only_first=True),
        ],
        "<|channel|>",
        has_special=True,
    ),
}
REASONING_PARSERS: Mapping[str, Parser] = {
    "deepseek_r1": Parser([Segment("<think>", "</think>")], "<think>"),
    "mistral": Parser([Segment("[THINK]", "[/THINK]")], "[THINK]", has_special=True),
    "openai_gptoss": Parser(
        [
            Segment("<|channel|>analysis<|message|>", "<|end|>"),
            *map(Segment, (_FINAL, "<|channel|>commentary<|message|>", _START, "<|end|>")),
        ],
        "<|channel|>",
        has_special=True,
    ),
}
NO_PARSER = Parser((), "")


def choose_parser(
    parsers: Mapping[str, Parser], name: str, template: str, otherwise: Parser
) -> Parser:
    """The parser of a name; for "auto" the one whose marks a chat template holds."""
    if name != "auto":
        return parsers.get(name, NO_PARSER)
    fitting = (parser for parser in parsers.values() if parser.in_template in template)
    return next(fitting, otherwise)
