"""Thoughts and calls of tools, as the models' own chat templates and documents write them."""

import json
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from launch.serving.parsers import REASONING_PARSERS, TOOL_PARSERS, Call, Reader, Told
from launch.serving.runner.runner import Runner
from tests.serving.http_server import NAME, running

ROME = Call("weather", '{"town": "Rome"}')
OSLO = Call("weather", '{"town": "Oslo"}')
# (parser of calls, parser of thoughts, end of the prompt, text, what it says)
CASES: list[tuple[str, str, str, str, Told]] = [
    (
        "hermes",
        "deepseek_r1",
        "",
        "<think>\nRome or Oslo?\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>',
        Told("\nRome or Oslo?\n", "I look.\n", [ROME, OSLO]),
    ),
    ("hermes", "deepseek_r1", "<think>", "\nSo.\n</think>\n\nYes.", Told("So.\n", "Yes.")),
    ("hermes", "deepseek_r1", "<think>", "It never ends", Told("It never ends")),
    ("hermes", "deepseek_r1", "", "1 <t 2 </think>", Told("", "1 <t 2 </think>")),
    (
        "hermes",
        "deepseek_r1",
        "",
        '<tool_call>{"name": "weather", "arg',
        Told("", '<tool_call>{"name": "weather", "arg'),
    ),
    ("hermes", "none", "", "<think>x</think>", Told("", "<think>x</think>")),
    (
        "llama3_json",
        "none",
        "",
        '{"name": "weather", "parameters": {"town": "Rome"}}; '
        '{"name": "weather", "parameters": {"town": "Oslo"}}',
        Told("", "", [ROME, OSLO]),
    ),
    (
        "llama3_json",
        "none",
        "",
        '<|python_tag|>{"name": "weather", "parameters": {"town": "Rome"}}',
        Told("", "", [ROME]),
    ),
    ("llama3_json", "none", "", 'As JSON: {"name": "x"}', Told("", 'As JSON: {"name": "x"}')),
    ("llama3_json", "none", "", '{"name": 3} is no call', Told("", '{"name": 3} is no call')),
    (
        "mistral",
        "mistral",
        "",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"town": "Rome"}}]',
        Told("", "", [ROME]),
    ),
    (
        "mistral",
        "mistral",
        "",
        '[THINK]Both.[/THINK]Well: [TOOL_CALLS]weather{"town": "Rome"}'
        '[TOOL_CALLS]weather[ARGS]{"town": "Oslo"}',
        Told("Both.", "Well: ", [ROME, OSLO]),
    ),
    (
        "openai",
        "openai_gptoss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Hi there",
        Told("They greet.", "Hi there"),
    ),
    (
        "openai",
        "openai_gptoss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>One moment.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"town": "Rome"}',
        Told("I look.", "One moment.", [ROME]),
    ),
    (
        "openai",
        "openai_gptoss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.weather"
        '<|channel|>commentary json<|message|>{"town": "Oslo"}<|call|>',
        Told("I look.", "", [OSLO]),
    ),
]


def _read(pieces: list[str], calls: str, thoughts: str, prompt: str) -> Told:
    segments = [*TOOL_PARSERS[calls].segments]
    segments += REASONING_PARSERS[thoughts].segments if thoughts != "none" else ()
    reader = Reader(segments, prompt)
    last = len(pieces) - 1
    told = [reader.feed(piece, last=place == last) for place, piece in enumerate(pieces)]
    return Told(
        "".join(part.thought for part in told),
        "".join(part.text for part in told),
        [call for part in told for call in part.calls],
    )


@pytest.mark.parametrize(("calls", "thoughts", "prompt", "text", "says"), CASES)
def test_families(calls: str, thoughts: str, prompt: str, text: str, says: Told) -> None:
    """Whole, by characters, and in pieces of other sizes; the last one may be empty."""
    for size in (len(text), 1, 2, 3, 7, 20):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        for cut in (pieces, [*pieces, ""]):
            told = _read(cut, calls, thoughts, prompt)
            assert told == says._replace(calls=list(says.calls)), (size, told)


@pytest.mark.parametrize("family", [*TOOL_PARSERS, "auto"])
def test_the_template_tells_the_family(byte_runner: Runner, tmp_path: Any, family: str) -> None:
    """A text, the only one that the form allows, is read as a call, whole and streamed."""
    marks = {"hermes": "<tool_call>", "llama3_json": "<|python_tag|>", "openai": "<|channel|>"}
    mark = marks.get(family, "[TOOL_CALLS]")
    file = tmp_path / "template.jinja"
    file.write_text("{# " + mark + " #}{{ messages[0].content }}")
    call = json.dumps({"name": "f", "arguments": {}})
    texts = {
        "hermes": f"<tool_call>{call}</tool_call>",
        "llama3_json": f"<|python_tag|>{call}",
        "openai": "<|channel|>commentary to=functions.f json<|message|>{}",
    }
    text = texts.get(family, "[TOOL_CALLS]f{}")
    form = {"structured_outputs": {"choice": [text]}, "max_tokens": 100}
    message = {"role": "user", "content": "Hi"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    chat = {"model": NAME, "messages": [message], "tools": [tool], "extra_body": form}
    with (
        running(byte_runner, chat_template=str(file)) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        whole = client.chat.completions.create(**chat).choices[0]
        chunks = list(client.chat.completions.create(**chat, stream=True))
    (made,) = whole.message.tool_calls
    deltas = [chunk.choices[0].delta for chunk in chunks]
    (streamed,) = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert (made.function.name, made.function.arguments) == ("f", "{}")
    assert (streamed.function.name, streamed.function.arguments) == ("f", "{}")
    assert whole.finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
    assert len(made.id) == 9 if mark == "[TOOL_CALLS]" else made.id.startswith("call-")


def test_thoughts_by_all_doors(byte_runner: Runner, tmp_path: Any) -> None:
    """The prompt ends within a thought, which the model never ends."""
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].content }}<think>")
    message = {"role": "user", "content": "Hi"}
    limits = {"max_tokens": 9, "temperature": 0}
    asked = {"model": NAME, "input": "Hi", "max_output_tokens": 9, "temperature": 0}
    body = {"model": NAME, "messages": [message], "max_tokens": 9, "extra_body": {"temperature": 0}}
    with (
        running(byte_runner, chat_template=str(file)) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as openai,
        Anthropic(base_url=server.url, api_key="any", max_retries=0) as anthropic,
    ):
        same = openai.completions.create(model=NAME, prompt="Hi<think>", **limits)
        thought = same.choices[0].text.lstrip()
        chat = openai.chat.completions.create(model=NAME, messages=[message], **limits).choices[0]
        assert (chat.message.reasoning_content, chat.message.content) == (thought, "")
        stream = openai.chat.completions.create(
            model=NAME, messages=[message], stream=True, **limits
        )
        deltas = [chunk.choices[0].delta for chunk in stream]
        assert "".join(getattr(delta, "reasoning", "") for delta in deltas) == thought
        assert not any(delta.content for delta in deltas)
        response = openai.responses.create(**asked)
        assert response.output[0].content[0].text == thought
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        with openai.responses.stream(**asked) as events:
            told = list(events)
        final = told[-1].response
        assert "response.reasoning_text.delta" in [event.type for event in told]
        assert [item.type for item in final.output] == ["reasoning", "message"]
        assert final.output[0].content[0].text == thought
        again = openai.responses.create(
            **{**asked, "input": [message, *final.model_dump()["output"]]}
        )
        assert again.status == "incomplete"
        message = anthropic.messages.create(**body)
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == thought
        with anthropic.messages.stream(**body) as blocks:
            assert blocks.get_final_message().content[0].thinking == thought
