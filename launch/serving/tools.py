"""The tools that a client offers, and the form of the calls that it forces."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.serving.errors import RequestError
from launch.serving.grammar import enclosed_json_grammar
from launch.serving.parsers import Parser, Segment, json_calls

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # OpenAI's
_MODES = ("auto", "none", "required")


@dataclass(frozen=True)
class Tools:
    """The tools of a body, and whether they must be called."""

    offered: Sequence[Mapping[str, Any]] = ()
    forced: Sequence[Mapping[str, Any]] = ()  # functions of which the answer must call one

    @property
    def grammar(self) -> str:
        """The grammar of an answer that calls a forced tool. Raises RequestError if the
        parameters of a tool cannot be compiled."""
        rules = [
            (
                f'{{"name":{json.dumps(function["name"])},"arguments":',
                function.get("parameters") or {"type": "object"},
                "}",
            )
            for function in self.forced
        ]
        return enclosed_json_grammar(rules, "tools")

    def segments(self, parser: Parser) -> Sequence[Segment]:
        """What answers hold of calls, if the model writes them as a parser reads them."""
        if self.forced:
            return [Segment("", None, json_calls, only_first=True)]
        return parser.segments if self.offered else ()


def read_tools(tools: Sequence[Any], choice: Any) -> Tools:
    """The fields `tools` and `tool_choice`. Raises RequestError for what they cannot be."""
    functions = {_function(tool)["name"]: tool for tool in tools}
    mode, names = _read_choice(choice, list(functions))
    if mode == "none":
        return Tools()
    if mode == "auto":
        return Tools([functions[name] for name in names])
    if not names:
        raise RequestError("tool_choice is required, but there are no tools", "tool_choice")
    return Tools(tools, [functions[name]["function"] for name in names])


def _read_choice(choice: Any, known: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Whether tools must be called (a word of _MODES), and which may be."""
    if choice is None or isinstance(choice, str):
        mode, names = choice or "auto", known
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = _object(choice, "allowed_tools")
        mode, listed = allowed.get("mode", "auto"), allowed.get("tools")
        names = [_name(tool) for tool in (listed if isinstance(listed, list) else [])]
        if not names:
            raise RequestError("tool_choice.allowed_tools lists no tools", "tool_choice")
    elif isinstance(choice, dict):
        mode, names = "required", [_name(choice)]
    else:
        mode, names = "", ()
    if mode not in _MODES:
        raise RequestError(
            f"tool_choice is {json.dumps(choice)[:60]}; it must be {', '.join(_MODES)}, or name "
            'a tool: {"type": "function", "function": {"name": …}}',
            "tool_choice",
        )
    if unknown := [name for name in names if name not in known]:
        raise RequestError(
            f"tool_choice names {unknown[0]!r}, which is not among the tools "
            f"{', '.join(known) or '(there are none)'}",
            "tool_choice",
        )
    return mode, names


def _name(choice: Any) -> str:
    return str(_object(choice, "function").get("name", ""))


def _object(value: Any, name: str) -> Mapping[str, Any]:
    inner = value.get(name) if isinstance(value, dict) else None
    if not isinstance(inner, dict):
        raise RequestError(f"tool_choice needs an object {name!r}", "tool_choice")
    return inner


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(
            'every tool must be {"type": "function", "function": {"name": …, "parameters": …}}',
            "tools",
        )
    if not _NAME.fullmatch(function["name"]):
        raise RequestError(
            f"a tool is named {function['name'][:80]!r}; names are 1 to 64 letters, digits, _ or -",
            "tools",
        )
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise RequestError(
            f"the parameters of the tool {function['name']!r} must be a JSON schema",
            "tools",
        )
    return function
