"""vLLM's fields about the text of an answer, and what turns texts into tokens, by the door."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers.models import WordLevel

from launch.serving.runner.runner import Runner
from launch.text import FileTokenizer
from tests.serving.http_server import CONTEXT, NAME, Running, running
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


def test_other_tokens_never_come(server: Running) -> None:
    """Greedy answers are those in which the others were made impossible."""
    letters = list(b"abcdefgh")
    bias = {str(token): -100 for token in range(256) if token not in letters}
    text = answer(server, allowed_token_ids=letters)[0]
    assert text == answer(server, logit_bias=bias)[0]
    assert len(text) == 16
    ending = answer(server, allowed_token_ids=letters, stop_token_ids=[ord(text[0])], min_tokens=3)
    assert ending[2] >= 3


@pytest.mark.parametrize("get", [lambda *args, **kw: answer(*args, **kw)[0], streamed])
@pytest.mark.parametrize("length", [1, 3])
def test_words_that_may_not_come(server: Running, get: Any, length: int) -> None:
    """The answer is the same until the word would be complete."""
    letters = list(range(32, 127))
    whole = answer(server, allowed_token_ids=letters)[0]
    word, place = whole[4 : 4 + length], whole.find(whole[4 : 4 + length]) + length - 1
    text = get(server, allowed_token_ids=letters, bad_words=["never there", word])
    assert text[:place] == whole[:place]
    assert word not in text
    assert len(text) == 16


def test_the_numbers_of_tokens(server: Running) -> None:
    body = {**ASKED, "return_token_ids": True}
    (choice,) = server.ask(COMPLETIONS, body)[1]["choices"]
    assert choice["prompt_token_ids"] == list(b"The ")
    assert bytes(choice["token_ids"]).decode(errors="replace") == choice["text"]
    for path, given in ((COMPLETIONS, {}), (CHAT, {"messages": MESSAGES, "prompt": None})):
        told = server.ask(path, {**body, **given})[1]
        events = server.ask(path, {**body, **given, "stream": True})[1].split("\n\n")[:-2]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        pieces = [chunk["choices"][0] for chunk in chunks]
        numbers = [token for piece in pieces for token in piece.get("token_ids", ())]
        assert numbers == told["choices"][0]["token_ids"]
        first, whole = (pieces[0], choice) if path == COMPLETIONS else (chunks[0], told)
        assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    named = server.ask(COMPLETIONS, {**ASKED, "logprobs": 2, "return_tokens_as_token_ids": True})[1]
    logprobs = named["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(name.startswith("token_id:") for top in logprobs["top_logprobs"] for name in top)


def test_a_prompt_is_cut_at_its_beginning(server: Running) -> None:
    text = "Nothing of this is read, but of the last words. " * 9
    for count, kept in ((12, text[-12:]), (-1, text[-(CONTEXT - 16) :])):
        status, told = server.ask(
            COMPLETIONS, {**ASKED, "prompt": text, "truncate_prompt_tokens": count}
        )
        assert status == 200, told
        assert told["usage"]["prompt_tokens"] == len(kept)
        assert told["choices"][0]["text"] == answer(server, prompt=kept)[0]


def test_texts_are_shared_with_those_of_the_same_salt(server: Running) -> None:
    prompt = "A secret that nobody else may find in the cache."

    def cached(**fields: Any) -> int:
        told = server.ask(COMPLETIONS, {**ASKED, "prompt": prompt, **fields})[1]
        count: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0
    assert cached() == 0


def test_the_last_message_goes_on(server: Running) -> None:
    """As the text that the template writes before it."""
    begun = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nWell, "
    text = answer(server, prompt=prompt)[0]
    body = {**ASKED, "prompt": None, "messages": begun, "continue_final_message": True}
    for echo in (False, True):
        told = server.ask(CHAT, {**body, "echo": echo})[1]
        assert told["choices"][0]["message"]["content"] == ("Well, " if echo else "") + text
        assert told["usage"]["prompt_tokens"] == len(prompt)
    fields = {"max_tokens": 16, "temperature": 0, "messages": begun}
    assert server.ask("/v1/messages", fields)[1]["content"] == [{"type": "text", "text": text}]


def test_fields_that_a_template_reads(byte_runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ reasoning_effort }}:{{ documents[0].text }}:{{ messages[0].content }}")
    body = {"messages": MESSAGES, "reasoning_effort": "low", "documents": [{"text": "a"}]}
    asked = {"max_output_tokens": 1, "input": "Hi", "reasoning": {"effort": "low"}}
    with running(byte_runner, chat_template=str(file)) as server:
        tokens = server.ask("/tokenize", body)[1]["tokens"]
        read = server.ask("/v1/responses", {**asked, "documents": [{"text": "a"}]})[1]
    assert bytes(tokens) == b"low:a:Hi"
    assert read["usage"]["input_tokens"] == len(tokens)


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
