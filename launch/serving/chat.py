"""Conversations as prompts: the chat template of a checkpoint, or a plain one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launch.errors import DataError
from launch.serving.errors import RequestError

TEMPLATE_FILE, CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"

# For models that were never trained on conversations.
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ChatTemplate:
    """A Jinja template as transformers runs it: sandboxed, with the names it offers.

    Raises DataError for a template that is none.
    """

    def __init__(self, source: str, names: Mapping[str, Any], where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._names = dict(names)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"the chat template of {where} cannot be used: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        """The prompt for the next message. Raises RequestError for what the template refuses."""
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=True, **self._names
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", "messages"
            ) from error


def read_template(directory: Path | None) -> ChatTemplate:
    """The template of a directory; a plain one if there is none. Raises DataError."""
    if directory is None:
        return ChatTemplate(PLAIN, {}, "this program")
    config = _read_config(directory / CONFIG_FILE)
    source = config.get("chat_template")
    if (directory / TEMPLATE_FILE).is_file():
        source = (directory / TEMPLATE_FILE).read_text()
    if isinstance(source, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    names = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    return ChatTemplate(source if isinstance(source, str) else PLAIN, names, str(directory))


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file} holds a {type(values).__name__}, but a JSON object is needed")
    return values


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
