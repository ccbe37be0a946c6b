"""Calls of tools: what a client offers, what a grammar forces, what an answer's text contains."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launch.serving.errors import RequestError

# How Hermes, Qwen and others write calls that nobody forces.
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
OPENING = "<tool_call>"


class Call(NamedTuple):
    """One call of a tool."""

    name: str
    arguments: str  # JSON


@dataclass(frozen=True)
class Tools:
    """The tools of a body, and whether they must be called."""

    offered: Sequence[Mapping[str, Any]] = ()
    forced: Sequence[Mapping[str, Any]] = ()  # functions of which the answer must call one

    @property
    def schema(self) -> Mapping[str, Any]:
        """Of an answer that calls one of the forced tools."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": function.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for function in self.forced
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}

    def calls(self, text: str) -> tuple[str, list[Call]]:
        """The text without calls, and the calls in it."""
        if self.forced:
            call = _call(text)
            return ("", [call]) if call else (text, [])
        if not self.offered:
            return text, []
        calls = [call for match in _CALL.finditer(text) if (call := _call(match.group(1)))]
        return (_CALL.sub("", text).strip(), calls) if calls else (text, [])


def read_tools(tools: Sequence[Any], choice: Any) -> Tools:
    """The fields `tools` and `tool_choice`. Raises RequestError for what they cannot be."""
    functions = [_function(tool) for tool in tools]
    if choice is None or choice == "auto":
        return Tools(tools)
    if choice == "none":
        return Tools()
    if choice == "required":
        if not functions:
            raise RequestError("tool_choice is required, but there are no tools", "tool_choice")
        return Tools(tools, functions)
    name = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    named = [function for function in functions if function["name"] == name]
    if not named:
        known = [function["name"] for function in functions]
        raise RequestError(f"tool_choice names no tool of {known}", "tool_choice")
    return Tools(tools, named)


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(
            'every tool must be {"type": "function", "function": {"name": …, "parameters": …}}',
            "tools",
        )
    return function


def _call(text: str) -> Call | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))
