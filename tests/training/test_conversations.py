"""Which tokens of a conversation are learnt, one by one, for templates of three kinds."""

from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from launch.chat_template import CHATML, ChatTemplate
from launch.data.records import Record, RecordError
from launch.finetuning.conversations import Writer
from launch.text import ByteTokenizer, FileTokenizer

# The format of Llama 3: llama.com, "Model cards and prompt formats".
LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Tools in ChatML, as Hermes and Qwen write them: nousresearch.com, "Hermes function calling".
TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, '
    '"arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALTERNATING = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}"
    "{{ messages[0].content }}"
)
FORGETFUL = (  # as of models that think: what was thought is forgotten
    "{% for m in messages %}[{{ m.role }}]"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
)
TALK = [
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes, four."},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """Words, spaces and marks are tokens."""
    texts = [m["content"] for m in TALK] + ['assistant system tool , : . ? " { } [ ] \n 0 4 4.0 ']
    texts += ["name arguments add numbers a b 2 type function result Add them: It is"]
    split = pre_tokenizers.Split(tokenizers.Regex(r"\w+|\s|[^\w\s]"), "isolated")
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    words |= {"user", "[UNK]", *SPECIAL}
    model = models.WordLevel({w: i for i, w in enumerate(sorted(words))}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = split
    made.add_special_tokens(list(SPECIAL))
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(file))
    return FileTokenizer(file)


def writer(tokenizer: Any, source: str | None, **variables: Any) -> Writer:
    template = None if source is None else ChatTemplate(source, "the test", variables)
    return Writer(tokenizer, template, end=tokenizer.token("<|eot_id|>"))


def read(writer: Writer, **fields: Any) -> tuple[list[str], list[str]]:
    """All tokens as texts; those that are learnt with brackets around them, in runs."""
    learnt = writer.read(Record(fields, "talks.jsonl, line 3"))
    file: Any = writer.tokenizer
    words = [file._tokenizer.id_to_token(int(token)) for token in learnt.tokens]
    assert learnt.tokens.dtype == np.int32
    assert "[UNK]" not in words
    runs: list[str] = []
    for i, (word, counts) in enumerate(zip(words, learnt.counts, strict=True)):
        if counts:
            if i and learnt.counts[i - 1]:
                runs[-1] += "·" + word
            else:
                runs.append(word)
    return words, runs


def test_llama_3_token_by_token(tokenizer: FileTokenizer) -> None:
    words, learnt = read(writer(tokenizer, LLAMA_3, bos_token="<|begin_of_text|>"), messages=TALK)
    header = ["<|start_header_id|>", "{}", "<|end_header_id|>", "\n", "\n"]
    user = ["user" if word == "{}" else word for word in header]
    assistant = ["assistant" if word == "{}" else word for word in header]
    assert words == [
        "<|begin_of_text|>",
        *(*user, "Two", " ", "and", " ", "two", "?", "<|eot_id|>"),
        *(*assistant, "Four", ".", "<|eot_id|>"),
        *(*user, "Sure", "?", "<|eot_id|>"),
        *(*assistant, "Yes", ",", " ", "four", ".", "<|eot_id|>"),
    ]
    assert learnt == ["Four·.·<|eot_id|>", "Yes·,· ·four·.·<|eot_id|>"]


@pytest.mark.parametrize("marked", [True, False])
def test_chatml_token_by_token(tokenizer: FileTokenizer, marked: bool) -> None:
    plain = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    words, learnt = read(writer(tokenizer, CHATML if marked else plain), messages=TALK)
    first = ["<|im_start|>", "user", "\n", "Two", " ", "and", " ", "two", "?", "<|im_end|>"]
    assert words[:10] == first
    end = "" if marked else "·\n"  # without marks, all that comes before the next message
    assert learnt == [f"Four·.·<|im_end|>{end}", f"Yes·,· ·four·.·<|im_end|>{end}"]


def test_tool_calls_token_by_token(tokenizer: FileTokenizer) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}
    talk = [
        {"role": "user", "content": "Two and two?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "Four."},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    words, learnt = read(writer(tokenizer, TOOLS), messages=talk, tools=tools)
    arguments = '{|"|a|"|:| |2|,| |"|b|"|:| |2|}'.replace("|", "·")
    assert learnt == [
        '<tool_call>·\n·{·"·name·"·:· ·"·add·"·,· ·"·arguments·"·:· ·'
        + arguments
        + "·}·\n·</tool_call>·<|im_end|>·\n",
        "Four·.·<|im_end|>·\n",
    ]
    assert words[:4] == ["<|im_start|>", "system", "\n", "{"]


def test_messages_without_weight_are_not_learnt(tokenizer: FileTokenizer) -> None:
    talk = [*TALK[:1], {**TALK[1], "weight": 0}, *TALK[2:]]
    assert read(writer(tokenizer, CHATML), messages=talk)[1] == ["Yes·,· ·four·.·<|im_end|>"]


def test_prompts_and_completions(tokenizer: FileTokenizer) -> None:
    plain = writer(tokenizer, None)
    words, learnt = read(plain, prompt="Two and two?", completion=" Four.")
    assert learnt == [" ·Four·.·<|eot_id|>"]
    assert words[-1] == "<|eot_id|>"
    assert read(plain, text="Yes, four.")[1] == ["Yes·,· ·four·.·<|eot_id|>"]
    chat = read(writer(tokenizer, CHATML), prompt=TALK[:3], completion=TALK[3:])
    assert chat[1] == ["Yes·,· ·four·.·<|im_end|>"]
    named = [{"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "Four."}]
    assert read(writer(tokenizer, CHATML), conversations=named)[1] == ["Four·.·<|im_end|>"]


def test_bytes() -> None:
    learnt = Writer(ByteTokenizer()).read(Record({"prompt": "ü?", "completion": "ä"}, "x"))
    assert bytes(learnt.tokens.tolist()).decode() == "ü?ä"
    assert learnt.counts.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        (ALTERNATING, {"messages": TALK[1:]}, "line 3: the chat template.*the user begins"),
        (FORGETFUL, {"messages": [*TALK[:1], {"role": "assistant", "content": "a</think>b"},
                                  *TALK[2:]]}, r"line 3: .*message 2 of 4 differently"),
        (None, {"messages": TALK}, "line 3: .*needs a chat template.*--chat_template"),
        (CHATML, {"messages": "Hi"}, r"line 3: expected a list of messages.*not 'Hi'"),
        (CHATML, {"messages": []}, r"line 3: expected a list of messages.*not \[\]"),
        (CHATML, {"messages": [{"content": "Hi"}]}, r"line 3: expected .* each with a role"),
        (CHATML, {"messages": [{"role": "user"}]}, r"line 3: .*fails in line 6: .*content"),
        (CHATML, {"messages": TALK, "chat_template_kwargs": [1]}, r"expected an object.* \[1\]"),
        (CHATML, {"question": "?"}, r"line 3: no conversation, .* are 'question'"),
    ],
)  # fmt: skip
def test_records_that_cannot_be_used_are_named(
    tokenizer: FileTokenizer, source: str | None, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        writer(tokenizer, source).read(Record(fields, "talks.jsonl, line 3"))
