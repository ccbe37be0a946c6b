"""Chat templates: a tokenizer's Jinja template, which formats a conversation as one text.

The environment is that of transformers (huggingface.co/docs/transformers, "Chat templates"): loops
with `break` and `continue`, `raise_exception`, `strftime_now`, a `tojson` that does not escape
letters, and `{% generation %}` around what the assistant says. Templates are untrusted, so they run
in a sandbox.
"""

import json
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from launch.data.extras import library
from launch.errors import DataError

TEMPLATE_FILE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
DEFAULT = "default"  # the name of a template among several
_USER = "A chat template"
_WITHOUT_TYPES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # tokenizers of any model

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message['content'] + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
BUNDLED: Mapping[str, str] = {"chatml": CHATML}
"""Templates by name, for models that have none."""

Messages = Sequence[Mapping[str, Any]]


class Rendered(NamedTuple):
    """A conversation as a text, and the spans of characters [begin, end) that the template marks as
    generated."""

    text: str
    generated: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A compiled template. Raises DataError if it is not valid Jinja."""

    def __init__(self, source: str, where: str, variables: Mapping[str, Any]) -> None:
        """`where` names it in messages; `variables`, such as bos_token, are there for it."""
        self.where, self._variables = where, variables
        self._jinja = library("jinja2", "jinja2", _USER)
        self._mark = secrets.token_hex(8)  # no conversation holds it
        self._end = f"{secrets.token_hex(8)} "  # the space shows whether a template strips messages
        environment, meta = _environment(self._mark), library("jinja2.meta", "jinja2", _USER)
        try:
            self._template = environment.from_string(source)
        except self._jinja.TemplateSyntaxError as error:
            reason = (error.message or "").rstrip(".")
            raise DataError(
                f"the chat template of {where} is not a Jinja template: line {error.lineno}: "
                f"{reason}. Correct it, or give another with --chat_template."
            ) from error
        self.source = source
        self.marks_answers = "endgeneration" in source
        self.names = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        """Variables that the template reads."""

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> Rendered:
        """The text of a conversation; with a generation prompt, up to where the next answer begins,
        or up to where the final message can go on.

        `variables` are further variables for the template, such as `tools`. Raises DataError with
        the template's own message if it refuses the conversation.
        """
        if continue_final_message:
            if add_generation_prompt:
                raise DataError("a final message that goes on needs add_generation_prompt=false")
            *before, last = messages
            messages = [*before, {**last, "content": _append_text(last.get("content"), self._end)}]
        given = {"tools": None, "documents": None, **self._variables, **variables}
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **given
            )
        except Exception as error:  # a template may do anything, and fail as any program does
            raise DataError(
                f"the chat template of {self.where} fails{_line_of(error)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._without_marks(self._until_end(text) if continue_final_message else text)

    def _until_end(self, text: str) -> str:
        """The text before the mark in the final message; as in transformers, a template that takes
        white space off messages takes it off this one."""
        end = self._end.strip()
        if end not in text:
            raise DataError(
                f"the chat template of {self.where} does not write the final message, so that no "
                "answer can go on with it"
            )
        kept = text[: text.rindex(end)]
        return kept if self._end in text else kept.rstrip()

    def _without_marks(self, text: str) -> Rendered:
        pieces = text.split(self._mark)
        ends, length = [], 0
        for piece in pieces[:-1]:
            length += len(piece)
            ends.append(length)
        if len(ends) % 2:  # the final message goes on
            ends.append(length + len(pieces[-1]))
        return Rendered("".join(pieces), tuple(zip(ends[::2], ends[1::2], strict=True)))


def text_of(content: Any) -> str:
    """The text of a message, which is given as a whole or in parts."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _append_text(content: Any, more: str) -> Any:
    """The content of a message with more text at its end."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": more}]
    return f"{content or ''}{more}"


def read_chat_template(directory: Path, choice: str | None = None) -> ChatTemplate | None:
    """The chat template of a checkpoint's directory; None if there is none.

    `choice` may be the path of a template, a name of BUNDLED, or the name of one of several
    templates in the directory. Raises DataError for files that cannot be used.
    """
    config = _read_json(directory / TOKENIZER_CONFIG)
    variables = _special_tokens(config)
    if choice is not None and Path(choice).is_file():
        return ChatTemplate(_read(Path(choice)), choice, variables)
    there = _templates(directory, config)
    name = choice or (DEFAULT if DEFAULT in there else next(iter(there), None))
    if name in there:
        return ChatTemplate(there[name], str(directory), variables)
    if choice is None:
        return None
    if choice in BUNDLED:
        return ChatTemplate(BUNDLED[choice], f"--chat_template={choice}", variables)
    raise DataError(
        f"--chat_template={choice} is neither a file nor a known template. Templates in "
        f"{directory}: {', '.join(there) or 'none'}; bundled: {', '.join(BUNDLED)}."
    )


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a directory by name; files count before fields."""
    value = config.get("chat_template")
    templates = {DEFAULT: value} if isinstance(value, str) else {}
    if isinstance(value, list):
        templates = {
            str(entry["name"]): str(entry["template"])
            for entry in value
            if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
        }
    for file in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read(file)
    if (directory / TEMPLATE_FILE).is_file():
        templates[DEFAULT] = _read(directory / TEMPLATE_FILE)
    return templates


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """A special token such as eos_token in tokenizer_config.json: a string, or an object with
    one."""
    value = config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_tokenizer_config(directory: Path) -> Mapping[str, Any]:
    """The fields of a directory's tokenizer_config.json; empty if there is none.

    Raises DataError if it is not a JSON object.
    """
    return _read_json(directory / TOKENIZER_CONFIG)


def reads_token_types(directory: Path, config: Any) -> bool:
    """Whether the model in the directory is told which of two texts a token belongs to.

    As in transformers: if the model can be told, and its tokenizer is not of a class that tells
    nobody, or of one that `model_input_names` changes.
    """
    if getattr(config, "type_vocab_size", 0) < 2:
        return False
    values = read_tokenizer_config(directory)
    names = values.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return values.get("tokenizer_class") not in _WITHOUT_TYPES


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = [name for name in config if name.endswith("_token")]
    tokens = {name: special_token(config, name) for name in names}
    return {name: token for name, token in tokens.items() if token is not None}


def _read_json(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        values = json.loads(_read(file))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file} holds a {type(values).__name__}, but it must be a JSON object")
    return values


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _line_of(error: Exception) -> str:
    """The template's line in which an error arose, in words; empty if Jinja tells none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f" in line {lines[-1]}" if lines else ""


def _environment(mark: str) -> Any:
    jinja = library("jinja2", "jinja2", _USER)
    sandbox = library("jinja2.sandbox", "jinja2", _USER)
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _generation_extension(mark)],
    )
    environment.filters["tojson"] = _to_json

    def raise_exception(message: str) -> None:
        raise jinja.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **settings: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **settings)


def _generation_extension(mark: str) -> type:
    """Writes `mark` at both ends of {% generation %} … {% endgeneration %}."""
    jinja = library("jinja2", "jinja2", _USER)
    extensions = library("jinja2.ext", "jinja2", _USER)

    def parse(self: Any, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_marked")
        return jinja.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def marked(self: Any, caller: Callable[[], str]) -> str:
        return f"{mark}{caller()}{mark}"

    members = {"tags": {"generation"}, "parse": parse, "_marked": marked}
    return type("Generation", (extensions.Extension,), members)
