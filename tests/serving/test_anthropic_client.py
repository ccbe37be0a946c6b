"""Anthropic's Messages API by Anthropic's own client; chat completions say the same otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.serving.http_server import NAME, Running
from tests.serving.page_examples import examples, run_example

TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "Of a town.",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"enum": ["Rome", "Oslo"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
ASKED: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hi"}],
    "extra_body": {"temperature": 0},  # its newest version has no argument for it
}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def _chat(server: Running, **body: Any) -> Any:
    asked = {"model": NAME, "max_tokens": 9, "temperature": 0, **body}
    status, told = server.ask("/v1/chat/completions", asked)
    assert status == 200
    return told["choices"][0]["message"]["content"]


def test_a_message_whole_and_streamed(client: Anthropic, server: Running) -> None:
    """Both are the answer of a chat."""
    whole = client.messages.create(**ASKED, system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert whole.content[0].text == _chat(server, messages=[system, *ASKED["messages"]])
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 9)
    with client.messages.stream(**ASKED, system="Be brief.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 9)


@pytest.mark.parametrize("line", examples("messages"))
def test_examples_of_the_page(server: Running, tmp_path: Path, line: str) -> None:
    assert json.loads(run_example(line, server, tmp_path))["stop_reason"] == "max_tokens"


def test_a_stop_sequence_is_named(client: Anthropic) -> None:
    whole = client.messages.create(**ASKED).content[0].text
    stop = whole[2:4]
    cut = client.messages.create(**ASKED, stop_sequences=[stop, "no such text"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == whole[: whole.index(stop)]


def test_a_conversation_that_calls_a_tool(client: Anthropic, server: Running) -> None:
    asked = {**ASKED, "tools": [TOOL], "max_tokens": 80}
    called = client.messages.create(**asked, tool_choice={"type": "any"})
    (block,) = called.content
    assert (called.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "weather")
    with client.messages.stream(**asked, tool_choice={"type": "tool", "name": "weather"}) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.input == block.input
    assert streamed.input["town"] in ("Rome", "Oslo")
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sun"}
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": [block.model_dump()]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    call = {"name": block.name, "arguments": f'{{"town": "{block.input["town"]}"}}'}
    chat = [
        *ASKED["messages"],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": block.id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": block.id, "content": "sun"},
        {"role": "user", "content": "And?"},
    ]
    answered = client.messages.create(**{**ASKED, "messages": history})
    assert answered.content[0].text == _chat(server, messages=chat)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"messages": []}, "BadRequestError", "messages is"),
        ({"model": "other"}, "NotFoundError", "does not exist"),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "BadRequestError", "thinking"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "BadRequestError", "your own"),
        ({"extra_body": {"no_such_field": 1}}, "BadRequestError", "no_such_field is not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "BadRequestError",
            "blocks are of the type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "BadRequestError",
            "is of the type base64",
        ),
    ],
)
def test_what_cannot_be(
    client: Anthropic, changes: dict[str, Any], kind: str, message: str
) -> None:
    with pytest.raises(getattr(anthropic, kind), match=message) as refused:
        client.messages.create(**{**ASKED, **changes})
    body = refused.value.body
    assert isinstance(body, dict)
    assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
