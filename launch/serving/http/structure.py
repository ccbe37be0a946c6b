"""The fields of a body about the form of its answers: OpenAI's `response_format`, and vLLM's
`structured_outputs` with the older `guided_json`, `guided_regex`, `guided_choice` and
`guided_grammar`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from launch.serving.errors import RequestError
from launch.serving.grammar import (
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
    tagged_grammar,
)
from launch.serving.http.bodies import Body
from launch.text import Tokenizer

MOST_CHOICES = 1024


def read_structure(tokenizer: Tokenizer, body: Body) -> str | None:
    """The grammar of the answers; None if they may be anything.

    Raises RequestError for one that cannot be compiled, or for several.
    """
    grammars = [
        *_response_format(tokenizer, body),
        *_read_structures(tokenizer, body),
        *(read(body, name) for kind, read in _KINDS.items() if (name := f"guided_{kind}") in body),
    ]
    if len(grammars) > 1:
        raise RequestError(
            "the body gives the answer more than one structure: keep only one of response_format, "
            "structured_outputs and guided_*",
            "structured_outputs",
        )
    return grammars[0] if grammars else None


def _response_format(tokenizer: Tokenizer, body: Body) -> list[str]:
    form = body.object("response_format")
    kind = form.text("type", "text")
    if kind == "text":
        return []
    if kind == "json_object":
        return [json_grammar({"type": "object"}, "response_format")]
    if kind == "json_schema":
        described = form.object("json_schema")
        if "schema" not in described:
            raise described.fail("schema", "a JSON schema")
        described.all()  # its name and description do not change the answer
        return [json_grammar(described.object("schema").all(), "response_format")]
    if kind == "structural_tag":
        return [_read_tags(tokenizer, form, "response_format")]
    raise RequestError(
        f"response_format.type is {kind!r}; there are text, json_object, json_schema and "
        "structural_tag",
        "response_format",
    )


def _read_structures(tokenizer: Tokenizer, body: Body) -> list[str]:
    wanted = body.object("structured_outputs")
    grammars = [read(wanted, kind) for kind, read in _KINDS.items() if kind in wanted]
    if wanted.flag("json_object"):
        grammars.append(json_grammar({"type": "object"}, "structured_outputs"))
    if "structural_tag" in wanted:
        tags = wanted.derive(
            _schema(wanted, "structural_tag"), "structured_outputs.structural_tag."
        )
        grammars.append(_read_tags(tokenizer, tags, "structured_outputs"))
    if "structured_outputs" in body and not grammars:
        raise body.fail(
            "structured_outputs", f"one of {', '.join(_KINDS)}, json_object and structural_tag"
        )
    return grammars


def _read_tags(tokenizer: Tokenizer, form: Body, parameter: str) -> str:
    """Structural tags: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    form.text("type")
    triggers, tags = form.texts("triggers", MOST_CHOICES), []
    for tag in form.objects("structures"):
        begin = tag.text("begin", "")
        trigger = next((known for known in triggers if begin.startswith(known)), None)
        if trigger is None:
            raise tag.fail("begin", f"a text that begins with one of {', '.join(triggers)}")
        tags.append((trigger, begin, _schema(tag, "schema"), tag.text("end", "")))
    if not tags:
        raise form.fail("structures", "a list with an object at least")
    special = any(_is_special(tokenizer, trigger) for trigger in triggers)
    return tagged_grammar(tags, special=special, parameter=parameter)


def _is_special(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is one token that answers usually do not show."""
    token = tokenizer.token(text)
    return token is not None and tokenizer.stream().feed([token]) == ""


def _json(body: Body, name: str) -> str:
    return json_grammar(_schema(body, name), name)


def _schema(body: Body, name: str) -> Mapping[str, Any]:
    """An object, or its text."""
    if not isinstance(body.value(name), str):
        return body.object(name).all()
    try:
        schema = json.loads(body.value(name))
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise body.fail(name, "a JSON schema")
    return schema


def _regex(body: Body, name: str) -> str:
    return regex_grammar(body.text(name), name)


def _grammar(body: Body, name: str) -> str:
    return lark_grammar(body.text(name), name)


def _choice(body: Body, name: str) -> str:
    choices = body.texts(name, MOST_CHOICES)
    if not choices:
        raise body.fail(name, "a list with a string at least")
    return choice_grammar(choices, name)


_KINDS: Mapping[str, Callable[[Body, str], str]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
