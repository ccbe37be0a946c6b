"""Bodies of OpenAI's Responses API as those of chat completions, which say the same with other
words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body
from launch.serving.http.chat import ROLES

LOGPROBS = "message.output_text.logprobs"
"""What `include` asks for; other values of it are of what the model does not do."""

_RENAMED = {"max_output_tokens": "max_completion_tokens"}
_READ_HERE = (
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "include",
    "reasoning",
    "store",
    "previous_response_id",
)
_TEXTS = ("input_text", "output_text", "text")
_IMAGE = "input_image"
_REFUSED: Mapping[str, str] = {
    "conversation": "conversations are not kept: give all of it as input",
    "prompt": "templates are not kept: give input and instructions",
    "background": "ask for a stream, or wait for the answer",
}


def as_chat(body: Body, messages: Sequence[dict[str, Any]]) -> Body:
    """The body of a chat with these messages. Raises RequestError for what no chat can say."""
    for name, instead in _REFUSED.items():
        if body.value(name) not in (None, False):
            raise RequestError(f"{name} is not supported: {instead}", name)
    if body.text("truncation", "disabled") != "disabled":
        raise RequestError("truncation is not supported: shorten the input", "truncation")
    chat: dict[str, Any] = {
        _RENAMED.get(name, name): value
        for name, value in body.all().items()
        if name not in _READ_HERE
    }
    instructions = body.text("instructions")
    first = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat["reasoning_effort"] = body.object("reasoning").text("effort")
    chat["messages"] = [*first, *messages]
    chat["tools"] = [_tool(tool) for tool in body.list("tools")]
    chat["tool_choice"] = _tool_choice(body.value("tool_choice"))
    chat["logprobs"] = LOGPROBS in body.list("include")
    if not chat["logprobs"]:
        chat.pop("top_logprobs", None)
    chat["response_format"] = _response_format(body.object("text").object("format"))
    return body.derive({**chat, "n": 1})


def read_input(body: Body, before: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """What a body says, behind the messages of a conversation. Raises RequestError for what is no
    item."""
    given = body.value("input")
    if isinstance(given, str):
        return [*before, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise body.fail("input", "a string, or a list with at least one item")
    messages = list(before)
    for place, item in enumerate(given):
        where = f"input[{place}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        read = _ITEMS.get(str(kind))
        if read is None:
            raise RequestError(
                f"{where} must be an object of the type {', '.join(_ITEMS)}", "input"
            )
        read(messages, Body(item, f"{where}."))
    return messages


def _message(messages: list[dict[str, Any]], item: Body) -> None:
    content = item.value("content")
    if isinstance(content, list):
        parts = [_part(item, part) for part in content]
        shows = any(part["type"] == "image_url" for part in parts)
        content = parts if shows else "".join(part["text"] for part in parts)
    elif not isinstance(content, str):
        raise item.fail("content", "a string, or a list of texts,")
    if item.value("role") not in ROLES:
        raise item.fail("role", f"one of {', '.join(ROLES)}")
    role = item.text("role")
    if role == "assistant" and messages and _is_thought(messages[-1]):
        messages[-1]["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _part(item: Body, part: Any) -> dict[str, Any]:
    """The part of a chat that says or shows the same."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == _IMAGE:
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    raise item.fail("content", f"a list of parts of the types {', '.join((*_TEXTS, _IMAGE))}")


def _is_thought(message: Mapping[str, Any]) -> bool:
    return "reasoning_content" in message and not message["content"]


def _call(messages: list[dict[str, Any]], item: Body) -> None:
    call = {
        "id": _string(item, "call_id"),
        "type": "function",
        "function": {"name": _string(item, "name"), "arguments": _string(item, "arguments")},
    }
    if not (messages and ("tool_calls" in messages[-1] or _is_thought(messages[-1]))):
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _result(messages: list[dict[str, Any]], item: Body) -> None:
    messages.append(
        {
            "role": "tool",
            "tool_call_id": _string(item, "call_id"),
            "content": _string(item, "output"),
        }
    )


def _thought(messages: list[dict[str, Any]], item: Body) -> None:
    """What the assistant thought before its next message, for templates that show it."""
    parts = item.objects("content") or item.objects("summary")
    thought = "".join(_string(part, "text") for part in parts)
    messages.append({"role": "assistant", "content": "", "reasoning_content": thought})


_ITEMS: Mapping[str, Callable[[list[dict[str, Any]], Body], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _result,
    "reasoning": _thought,
}


def _string(item: Body, name: str) -> str:
    value: str | None = item.text(name)
    if value is None:
        raise item.fail(name, "a string")
    return value


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise RequestError(
            f"tools has one of the type {kind!r}; only functions can be called", "tools"
        )
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        allowed = {**choice, "tools": [_named(tool) for tool in _list(choice.get("tools"))]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return _named(choice)


def _named(tool: Any) -> Any:
    if isinstance(tool, dict) and "name" in tool:
        return {"type": "function", "function": {"name": tool["name"]}}
    return tool


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _response_format(form: Body) -> dict[str, Any]:
    kind = form.text("type", "text")
    if kind != "json_schema":
        return {"type": kind}
    if "schema" not in form:
        raise form.fail("schema", "a JSON schema")
    return {"type": kind, "json_schema": form.all()}
