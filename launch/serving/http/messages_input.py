"""Bodies of Anthropic's Messages API as those of chat completions, which say the same with other
words."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launch.serving.errors import RequestError
from launch.serving.http.bodies import Body

ROLES = ("user", "assistant")
_KEPT = ("model", "temperature", "top_p", "top_k", "stream", "max_tokens")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(body: Body) -> Body:
    """Raises RequestError for what no chat can say."""
    if "max_tokens" not in body:
        raise body.fail("max_tokens", "a number of tokens")
    thinking = body.object("thinking")
    if thinking.text("type", "disabled") != "disabled":
        raise RequestError(
            "thinking is not supported: the model itself decides whether it thinks", "thinking"
        )
    chat = {name: body.value(name) for name in _KEPT if name in body}
    chat["messages"] = [*_system(body), *_messages(body)]
    chat["continue_final_message"] = chat["messages"][-1]["role"] == "assistant"
    chat["tools"] = [_tool(tool) for tool in body.list("tools")]
    chat["tool_choice"] = _tool_choice(body)
    chat["stop"] = body.list("stop_sequences")
    return body.derive(chat)


def _system(body: Body) -> list[dict[str, Any]]:
    system = body.value("system")
    if system is None:
        return []
    return [{"role": "system", "content": _text(system, "system")}]


def _messages(body: Body) -> list[dict[str, Any]]:
    given = body.list("messages")
    if not given:
        raise body.fail("messages", "a list with at least one message")
    messages: list[dict[str, Any]] = []
    for place, message in enumerate(given):
        where = f"messages[{place}]"
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise RequestError(
                f"{where} must be an object with a role of {', '.join(ROLES)}", "messages"
            )
        messages += _message(message["role"], message.get("content"), f"{where}.content")
    return messages


def _message(role: str, content: Any, where: str) -> Iterable[dict[str, Any]]:
    """Results of tools are messages of their own in a chat, before what the user says."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = [_block(block, where) for block in content] if isinstance(content, list) else []
    if not blocks:
        raise RequestError(f"{where} must be a string or a list of blocks", "messages")
    results = [made for kind, made in blocks if kind == "tool_result"]
    calls = [made for kind, made in blocks if kind == "tool_use"]
    text, thought = (
        "".join(made for kind, made in blocks if kind == wanted) for wanted in ("text", "thinking")
    )
    parts = [
        made if kind == "image" else {"type": "text", "text": made}
        for kind, made in blocks
        if kind in ("text", "image")
    ]
    content = parts if any(kind == "image" for kind, _ in blocks) else text
    told: dict[str, Any] = {"role": role, "content": content}
    if thought:
        told["reasoning_content"] = thought
    if calls:
        told["tool_calls"] = calls
    return [*results, told] if content or calls else results


def _block(block: Any, where: str) -> tuple[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    read = _BLOCKS.get(str(kind))
    if read is None:
        raise RequestError(f"{where}: blocks are of the type {', '.join(_BLOCKS)}", "messages")
    return str(kind), read(block, where)


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, identifier = block.get("name"), block.get("id")
    if not (isinstance(name, str) and isinstance(identifier, str)):
        raise RequestError(f"{where}: a block tool_use has an id and a name", "messages")
    function = {"name": name, "arguments": json.dumps(block.get("input") or {})}
    return {"id": identifier, "type": "function", "function": function}


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The image of a block as chats have it. Raises RequestError for one that is not base64."""
    source = block.get("source")
    given = source if isinstance(source, dict) else {}
    if given.get("type") != "base64":
        raise RequestError(
            f"{where}: the source of an image is of the type base64, with media_type and data",
            "messages",
        )
    url = f"data:{given.get('media_type')};base64,{given.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    identifier = block.get("tool_use_id")
    if not isinstance(identifier, str):
        raise RequestError(f"{where}: a block tool_result has a tool_use_id", "messages")
    content = _text(block.get("content") or "", where)
    return {"role": "tool", "tool_call_id": identifier, "content": content}


def _text(value: Any, where: str) -> str:
    """A string, or the text of blocks."""
    if isinstance(value, str):
        return value
    texts = [entry.get("text") if isinstance(entry, dict) else None for entry in value or ()]
    if not (isinstance(value, list) and all(isinstance(text, str) for text in texts)):
        raise RequestError(f"{where} must be a string or a list of texts", where.partition("[")[0])
    return "".join(map(str, texts))


_BLOCKS: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "text": lambda block, where: _text([block], where),
    "image": _image,
    "thinking": lambda block, where: _text([{"text": block.get("thinking")}], where),
    "tool_use": _call,
    "tool_result": _result,
}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise RequestError(
            f"tools has one of the type {kind!r}; only tools of your own can be called", "tools"
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if "description" in tool:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(body: Body) -> Any:
    choice = body.object("tool_choice")
    kind = choice.text("type", "auto")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.text("name", "")}}
    if kind not in _CHOICES:
        raise choice.fail("type", f"one of {', '.join(_CHOICES)} and tool")
    return _CHOICES[kind]
