"""The server by the door of its users: OpenAI's own client, as it is installed."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel, conlist

from tests.serving.http_server import NAME, Running

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA},
}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, client.models.retrieve(NAME).id) == (NAME, NAME)


def test_a_completion_whole_and_streamed(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": "abc", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12)
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (3, 15)
    stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *pieces, last = stream
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert pieces[-1].choices[0].finish_reason == "length"
    assert last.usage.completion_tokens == 12
    by_tokens = client.completions.create(**{**asked, "prompt": [97, 98, 99]})
    assert by_tokens.choices[0].text == whole.choices[0].text
    echoed = client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == "abc" + whole.choices[0].text


def test_n_prompts_and_seeds(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": ["a", "bc"], "max_tokens": 8, "n": 2, "seed": 5}
    first, again = (client.completions.create(**asked) for _ in range(2))
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert [c.text for c in first.choices] == [c.text for c in again.choices]
    assert first.choices[0].text != first.choices[1].text
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (3, 32)
    other = client.completions.create(**{**asked, "seed": 6})
    assert other.choices[0].text == first.choices[1].text  # seeds count up


def test_stop_strings(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": "q", "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stop = text[6:9]
    expected = text[: text.index(stop)]
    whole = client.completions.create(**asked, stop=["not there", stop])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (expected, "stop")
    pieces = list(client.completions.create(**asked, stop=stop, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == expected
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_logprobs_and_bias(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": "abc", "max_tokens": 3, "temperature": 0}
    plain = client.completions.create(**asked, logprobs=2).choices[0].logprobs
    tops = [max(top.values()) for top in plain.top_logprobs]
    assert tops == plain.token_logprobs
    assert len(plain.tokens) == 3
    forced = client.completions.create(**asked, logit_bias={"122": 100})
    assert forced.choices[0].text == "zzz"
    spread = client.completions.create(**asked, logit_bias={"122": 20}, presence_penalty=2.0)
    assert spread.choices[0].text.startswith("z")
    chat = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=3
    )
    content = chat.choices[0].logprobs.content
    assert [len(entry.top_logprobs) for entry in content] == [3, 3]


def test_a_chat_whole_and_streamed(client: OpenAI) -> None:
    asked = {"model": NAME, "messages": MESSAGES, "max_completion_tokens": 10, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(**asked, stream=True)
    pieces = [chunk.choices[0] for chunk in stream]
    text = "".join(piece.delta.content or "" for piece in pieces)
    assert (text, pieces[-1].finish_reason) == (whole.choices[0].message.content, "length")
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    same = client.completions.create(model=NAME, prompt=prompt, max_tokens=10, temperature=0)
    assert same.choices[0].text == text


def test_a_schema(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    whole = client.chat.completions.create(
        model=NAME, messages=MESSAGES, response_format=form, n=2, seed=1
    )
    for choice in whole.choices:
        trip = json.loads(choice.message.content)
        assert (set(trip), choice.finish_reason) == ({"city", "days"}, "stop")
        assert trip["city"] in ("Bern", "Oslo")
        assert 1 <= trip["days"] <= 9


FORMS = [
    ({"structured_outputs": {"choice": ["yes", 'a "no"']}}, r'yes|a "no"'),
    ({"structured_outputs": {"regex": "[ab]{3}-[0-9]{2}"}}, r"[ab]{3}-[0-9]{2}"),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "triggers": ["e"],
                "structures": [{"begin": "er", "schema": {"const": [1]}, "end": "!"}],
            }
        },
        r"(?s)([^e]|er\[1\]!)*(e|er|er\[|er\[1|er\[1\])?",
    ),
    ({"structured_outputs": {"grammar": 'start: "x" n\nn: /[0-9]/ | "()"'}}, r"x([0-9]|\(\))"),
    ({"structured_outputs": {"json": SCHEMA}}, r'\{"city":"(Bern|Oslo)","days":[1-9]\}'),
    ({"guided_json": json.dumps(SCHEMA)}, r'\{"city":"(Bern|Oslo)","days":[1-9]\}'),
    ({"guided_choice": ["left", "right"]}, r"left|right"),
]


@pytest.mark.parametrize(("extra", "pattern"), FORMS)
def test_vllms_forms(client: OpenAI, extra: dict[str, object], pattern: str) -> None:
    text = client.completions.create(
        model=NAME, prompt="q", seed=3, max_tokens=80, extra_body=extra
    )
    chat = client.chat.completions.create(
        model=NAME, messages=MESSAGES, seed=3, max_tokens=80, extra_body=extra
    )
    for answer in (text.choices[0].text, chat.choices[0].message.content):
        assert re.fullmatch(pattern, answer)


ENDLESS = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"structured_outputs": {"regex": "(["}}, "invalid regex.* unclosed character class"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "the grammar cannot be compiled"),
        (
            {"structured_outputs": {"json": {"$ref": "#/$defs/a", "$defs": {"a": ENDLESS}}}},
            "no text that the model can write",
        ),
        ({"structured_outputs": {"choice": []}}, "a list with a string at least is needed"),
        ({"structured_outputs": {"form": "x"}}, "one of json, regex, choice, grammar"),
        ({"guided_json": "{"}, "a JSON schema is needed"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "more than one structure"),
    ],
)
def test_forms_that_cannot_be(client: OpenAI, extra: dict[str, object], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(model=NAME, prompt="q", extra_body=extra)


class Trip(BaseModel):
    city: Literal["Bern", "Oslo"]
    days: int


def test_a_class_is_a_schema(client: OpenAI) -> None:
    made = client.chat.completions.parse(
        model=NAME, messages=MESSAGES, response_format=Trip, seed=2, max_tokens=100
    )
    trip = made.choices[0].message.parsed
    assert trip is not None
    assert trip.city in ("Bern", "Oslo")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_tool_is_called(client: OpenAI, choice: object) -> None:
    asked = {"model": NAME, "messages": MESSAGES, "tools": [TOOL], "tool_choice": choice, "seed": 3}
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls
    assert (call.function.name, whole.finish_reason) == ("weather", "tool_calls")
    assert json.loads(call.function.arguments)["city"] in ("Bern", "Oslo")
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    (told,) = [chunk.delta.tool_calls[0] for chunk in chunks if chunk.delta.tool_calls]
    assert told.function.arguments == call.function.arguments
    assert chunks[-1].finish_reason == "tool_calls"


class Stop(BaseModel):
    city: Literal["Bern", "Oslo"]


class Tour(BaseModel):
    stops: conlist(Stop, min_length=1, max_length=2)


def test_a_class_within_a_class_is_what_a_tool_takes(client: OpenAI) -> None:
    """Such a schema refers to its own $defs."""
    made = client.chat.completions.parse(
        model=NAME,
        messages=MESSAGES,
        tools=[pydantic_function_tool(Tour)],
        tool_choice="required",
        seed=1,
    )
    (call,) = made.choices[0].message.tool_calls
    assert call.function.parsed_arguments.stops[0].city in ("Bern", "Oslo")


def test_only_allowed_tools_are_called(client: OpenAI) -> None:
    other = {"type": "function", "function": {"name": "trip", "parameters": SCHEMA}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "trip"}}]}
    for seed in range(3):
        made = client.chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            tools=[TOOL, other],
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
            seed=seed,
        )
        (call,) = made.choices[0].message.tool_calls
        assert call.function.name == "trip"


def test_many_at_once(server: Running) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            answers = [
                client.completions.create(
                    model=NAME, prompt=f"{index % 3}", max_tokens=9, temperature=0
                )
                for index in range(24)
            ]
            whole = [answer.choices[0].text for answer in await asyncio.gather(*answers)]
            stream = await client.completions.create(
                model=NAME, prompt="1", max_tokens=9, temperature=0, stream=True
            )
            pieces = [piece.choices[0].text async for piece in stream]
            return [*whole, "".join(pieces)]

    *texts, streamed = asyncio.run(ask())
    assert len(set(texts)) == 3
    assert texts == texts[:3] * 8
    assert streamed == texts[1]


def test_errors_are_those_of_the_client(client: OpenAI) -> None:
    asked = {"model": NAME, "prompt": "a"}
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(**{**asked, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="maximum context length is 160") as caught:
        client.completions.create(**asked, max_tokens=1000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")
    with pytest.raises(openai.BadRequestError, match="temperature=7"):
        client.completions.create(**asked, temperature=7)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="schema cannot be compiled"):
        client.chat.completions.create(model=NAME, messages=MESSAGES, response_format=form)
