"""OpenAI's Responses API by OpenAI's own client; chat completions say the same with other words."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.serving.http_server import NAME, Running
from tests.serving.test_openai_client import SCHEMA, TOOL

WEATHER = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
ASKED: dict[str, Any] = {"model": NAME, "input": "Hi", "temperature": 0, "max_output_tokens": 9}


class Sure(BaseModel):
    sure: bool


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_response_whole_and_streamed(client: OpenAI) -> None:
    """Both are the answer of a chat."""
    whole = client.responses.create(**ASKED, instructions="Be brief.")
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = client.chat.completions.create(
        model=NAME, messages=messages, temperature=0, max_tokens=9
    )
    assert whole.output_text == chat.choices[0].message.content
    used = whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens
    assert used == (chat.usage.prompt_tokens, 9, chat.usage.total_tokens)
    events = list(client.responses.create(**ASKED, instructions="Be brief.", stream=True))
    final = events[-1].response
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text


def test_a_conversation_that_calls_a_tool(client: OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "tools": [WEATHER], "max_output_tokens": 60}
    (call,) = client.responses.create(**asked, tool_choice="required").output
    assert (call.type, call.name) == ("function_call", "weather")
    assert set(json.loads(call.arguments)) == set(SCHEMA["properties"])  # type: ignore[call-overload]
    choice = {"type": "function", "name": "weather"}
    with client.responses.stream(**asked, tool_choice=choice) as stream:
        (streamed,) = stream.get_final_response().output
    assert json.loads(streamed.arguments) == json.loads(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    said = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    history = [said, call.model_dump(), result]
    with_history = client.responses.create(**{**asked, "input": history, "max_output_tokens": 1})
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
    ]
    chat = client.chat.completions.create(
        model=NAME,
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": call.call_id, "content": "sun"},
        ],
        tools=[TOOL],
        max_tokens=1,
    )
    assert with_history.usage.input_tokens == chat.usage.prompt_tokens


def test_a_class_and_logarithms(client: OpenAI) -> None:
    parsed = client.responses.parse(
        **{**ASKED, "max_output_tokens": 40},
        text_format=Sure,
        include=["code_interpreter_call.outputs"],
    )
    assert isinstance(parsed.output_parsed, Sure)
    told = client.responses.create(
        **ASKED, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = told.output[0].content[0].logprobs
    assert len(logprobs) == 9
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)
    assert "".join(entry.token for entry in logprobs if "token_id" not in entry.token)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"background": True}, "background is not supported: ask for a stream"),
        ({"truncation": "auto"}, "shorten the input"),
        ({"input": []}, r"input is \[\]; a string, or a list with at least one item"),
        (
            {"input": [{"type": "web_search_call"}]},
            r"input\[0\] must be an object of the type message",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            r"parts of the types",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "images stand in what the user says to a model that sees them",
        ),
        ({"input": [{"type": "function_call_output"}]}, r"input\[0\]\.call_id is missing"),
        ({"tools": [{"type": "web_search"}]}, "only functions can be called"),
        (
            {"input": [{"role": "captain", "content": "a"}]},
            r"input\[0\]\.role is \"captain\"; one of",
        ),
        ({"text": {"format": {"type": "json_schema"}}}, r"text\.format\.schema is missing"),
        ({"max_output_tokens": 0}, "it must be at least 1"),
    ],
)
def test_what_cannot_be(client: OpenAI, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.responses.create(**{**ASKED, **changes})
