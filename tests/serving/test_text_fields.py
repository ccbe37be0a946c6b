"""vLLM's fields about the text of an answer, and what turns texts into tokens, by the door."""

import json
from typing import Any

import pytest
import tokenizers
from tokenizers.models import WordLevel

from launch.text import FileTokenizer
from tests.serving.http_server import CONTEXT, NAME, Running
from tests.serving.test_http import CHAT, COMPLETIONS

ASKED = {"model": NAME, "prompt": "The ", "max_tokens": 16, "temperature": 0}
MESSAGES = [{"role": "user", "content": "Hi"}]


def answer(server: Running, **fields: Any) -> tuple[str, str, int]:
    """The text of a completion, why it ended, and how many tokens were drawn."""
    status, told = server.ask(COMPLETIONS, {**ASKED, **fields})
    assert status == 200, told
    (choice,) = told["choices"]
    return choice["text"], choice["finish_reason"], told["usage"]["completion_tokens"]


def streamed(server: Running, **fields: Any) -> str:
    """The text of the same as a stream."""
    _, told = server.ask(COMPLETIONS, {**ASKED, **fields, "stream": True})
    lines = [line.removeprefix("data: ") for line in told.split("\n\n") if line]
    chunks = map(json.loads, lines[:-1])
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("get", [lambda *args, **kw: answer(*args, **kw)[0], streamed])
def test_a_stop_string_may_belong_to_the_answer(server: Running, get: Any) -> None:
    whole = answer(server)[0]
    stop = whole[5:7]
    place = whole.find(stop)
    assert get(server, stop=["never there", stop]) == whole[:place]
    included = get(server, stop=["never there", stop], include_stop_str_in_output=True)
    assert included == whole[: place + len(stop)]
    assert get(server, stop=stop, min_tokens=16) == whole


def test_no_stop_token_is_drawn_before_the_least_length(server: Running) -> None:
    """Greedy answers are those in which the token was made impossible."""
    first = next(token for token in range(256) if answer(server, stop_token_ids=[token])[2] == 1)
    assert answer(server, stop_token_ids=[first])[:2] == ("", "stop")
    without = answer(server, logit_bias={str(first): -100}, max_tokens=4)
    text, _, count = answer(server, stop_token_ids=[first], min_tokens=4, max_tokens=16)
    assert count >= 4
    assert text.startswith(without[0])
    assert answer(server, stop_token_ids=[first], min_tokens=4, max_tokens=4) == without


def test_tokens_of_texts_and_conversations(server: Running) -> None:
    text = "Où ça? "
    told = server.ask("/tokenize", {"prompt": text, "return_token_strs": True})[1]
    assert told["tokens"] == list(text.encode())
    assert (told["count"], told["max_model_len"]) == (len(text.encode()), CONTEXT)
    assert (told["token_strs"][0], len(told["token_strs"])) == ("O", told["count"])
    assert server.ask("/detokenize", {"tokens": told["tokens"]})[1] == {"prompt": text}
    counts = [
        server.ask("/tokenize", {"messages": MESSAGES, "add_generation_prompt": prompted})[1][
            "count"
        ]
        for prompted in (True, False)
    ]
    chat = server.ask(CHAT, {"model": NAME, "messages": MESSAGES, "max_tokens": 1})[1]
    assert chat["usage"]["prompt_tokens"] == counts[0]
    assert counts[0] - counts[1] == len("<|im_start|>assistant\n")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_piece_may_tell_what_came_until_then(server: Running, path: str) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    given = {"messages": MESSAGES} if path == CHAT else {"prompt": "The "}
    letters = {"structured_outputs": {"regex": "[a-z]{50}"}}
    asked = {"model": NAME, "max_tokens": 40, "stream": True, "stream_options": options, **letters}
    *lines, done, _ = server.ask(path, {**asked, **given})[1].split("\n\n")
    usages = [json.loads(line.removeprefix("data: "))["usage"] for line in lines]
    counts = [usage["completion_tokens"] for usage in usages]
    assert done == "data: [DONE]"
    assert counts == sorted(counts)
    assert counts[0] < 40
    assert usages[-1] == usages[-2]
    assert counts[-1] == 40
    assert {usage["total_tokens"] - usage["completion_tokens"] for usage in usages} == {
        usages[0]["prompt_tokens"]
    }


def test_special_tokens_are_told_when_they_are_wanted() -> None:
    vocabulary = {"<s>": 0, "a": 1, "b": 2}
    source = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="a"))
    source.add_special_tokens(["<s>"])
    tokens = [0, 1, 2, 0]
    for skip in (True, False):
        stream = FileTokenizer(source).stream(skip_special_tokens=skip)
        expected = source.decode(tokens, skip_special_tokens=skip)
        assert stream.feed(tokens) + stream.finish() == expected
        assert ("<s>" in expected) == (not skip)
