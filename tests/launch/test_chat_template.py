"""Chat templates: what they write, what they may not do, and where they are found."""

import json
from pathlib import Path
from typing import Any

import pytest

from launch.chat_template import BUNDLED, CHATML, ChatTemplate, read_chat_template
from launch.errors import DataError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
]


def template(source: str, **variables: Any) -> ChatTemplate:
    return ChatTemplate(source, "the test", variables)


def test_chatml() -> None:
    """As in OpenAI's description of the format: "Chat Markup Language", 2023."""
    rendered = template(CHATML).render(TALK)
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )
    [(begin, end)] = rendered.generated
    assert rendered.text[begin:end] == "Hello.<|im_end|>"
    prompt = template(CHATML).render(TALK[:2], add_generation_prompt=True).text
    assert prompt == rendered.text[:begin]


def test_the_environment_is_that_of_transformers() -> None:
    source = (
        "{%- for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}{{ bos_token }}\n"
        "{% endfor %}"
    )
    text = template(source, bos_token="<s>").render([{"role": "ü"}] * 3).text
    assert text == '{"role": "ü"}<s>\n' * 2
    assert len(template("{{ strftime_now('%Y') }}").render([]).text) == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the test fails.*roles must alternate"),
        ("{{ messages[0].content.missing.deeper }}", "the test fails.*Undefined.*missing"),
        ("{{ messages.append(1) }}", "the test fails.*Security"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the test fails.*Security"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "the test fails.*Range"),
        ("{{ 1 / 0 }}", "the test fails.*ZeroDivision"),
    ],
)
def test_templates_that_fail_say_why(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        template(source).render(TALK)


def test_what_is_no_template_is_refused() -> None:
    with pytest.raises(DataError, match=r"the test is not a Jinja template: line 2.*endfor"):
        template("\n{% for x in y %}")


def test_templates_of_a_directory(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"chat_template": "field", "bos_token": {"content": "<s>"}}))
    chosen = read_chat_template(tmp_path)
    assert chosen is not None
    assert chosen.render([]).text == "field"
    named = [{"name": n, "template": n + "{{ bos_token }}"} for n in ("default", "rag")]
    file.write_text(json.dumps({"chat_template": named, "bos_token": {"content": "<s>"}}))
    for choice, text in ((None, "default<s>"), ("rag", "rag<s>"), ("chatml", "")):
        chosen = read_chat_template(tmp_path, choice)
        assert chosen is not None
        assert chosen.render([]).text == text
    (tmp_path / "chat_template.jinja").write_text("file")
    chosen = read_chat_template(tmp_path)
    assert chosen is not None
    assert chosen.render([]).text == "file"
    with pytest.raises(DataError, match=r"other is neither a file.*default, rag.*chatml"):
        read_chat_template(tmp_path, "other")
    file.write_text("[1")
    with pytest.raises(DataError, match=r"tokenizer_config\.json is not JSON"):
        read_chat_template(tmp_path)


def test_bundled_templates_mark_their_answers() -> None:
    for source in BUNDLED.values():
        assert template(source).marks_answers
