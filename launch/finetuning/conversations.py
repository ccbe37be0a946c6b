"""Conversations, prompts and plain texts as tokens, and which of them are learnt.

Records are those of OpenAI's and TRL's data sets: `messages`; `prompt` and `completion`, texts or
messages; or `text`, all of which is learnt. `tools`, `documents` and `chat_template_kwargs` go to
the template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from launch.chat_template import ChatTemplate, Messages
from launch.data.records import Record, RecordError, shortened
from launch.errors import DataError
from launch.text import Tokenizer

ASSISTANT = "assistant"
ANSWERS = ("completion", "answer", "response", "output")  # names of what follows a prompt

# How ShareGPT's records call who speaks.
_SPEAKERS = {"human": "user", "gpt": ASSISTANT, "system": "system", "tool": "tool"}


class Learnt(NamedTuple):
    """Tokens, int32 [N], and which of them are to be predicted, bool [N]."""

    tokens: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Writer:
    """What makes tokens of records.

    Attributes:
      tokenizer: of the model.
      template: for records with messages; None if the model has none.
      end: the token that ends an answer to a plain prompt; None = nothing ends it.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    end: int | None = None

    def read(self, record: Record) -> Learnt:
        """The tokens of a record of any of the forms above. Raises RecordError for others."""
        fields = record.fields
        answer = next((name for name in ANSWERS if fields.get(name) is not None), None)
        if "messages" in fields or "conversations" in fields:
            return self.conversation(record, messages_of(record), 0)
        if "prompt" in fields and answer is not None:
            return self.answered(record, fields["prompt"], fields[answer])
        if isinstance(fields.get("text"), str):
            tokens = self._append_end(self.tokenizer.encode(fields["text"], marks=True))
            return Learnt(tokens, np.ones(len(tokens), bool))
        names = ", ".join(map(repr, fields)) or "none"
        raise RecordError(
            f"{record.place}: no conversation, no prompt with a completion, and no text; the fields"
            f" are {names}. Name them messages, prompt and completion, or text."
        )

    def answered(self, record: Record, prompt: Any, answer: Any) -> Learnt:
        """A prompt and its answer, both texts or both lists of messages; the answer is learnt."""
        if isinstance(prompt, str) and isinstance(answer, str):
            spans = self.tokenizer.spans(prompt + answer, marks=True)
            counts = (spans.begins >= len(prompt)) & (spans.parts >= 0)
            tokens = self._append_end(spans.tokens)
            ended = np.ones(len(tokens) - len(counts), bool)
            return Learnt(tokens, np.concatenate([counts, ended]))
        before = checked_messages(record, prompt)
        return self.conversation(record, [*before, *checked_messages(record, answer)], len(before))

    def conversation(self, record: Record, messages: Messages, begin: int) -> Learnt:
        """A conversation, of which the assistant's messages are learnt from number `begin` on, but
        for those whose `weight` is 0."""
        if self.template is None:
            raise RecordError(
                f"{record.place}: a conversation needs a chat template, but the model has none. "
                "Give one with --chat_template, such as chatml."
            )
        variables = {
            name: record.fields[name]
            for name in ("tools", "documents")
            if record.fields.get(name) is not None
        } | _template_arguments(record)
        try:
            text, answers = _write(self.template, messages, variables)
        except DataError as error:
            raise RecordError(f"{record.place}: {error}") from error
        learnt = [
            span
            for number, span in answers
            if number >= begin and messages[number].get("weight", 1)
        ]
        spans = self.tokenizer.spans(text, marks=False)
        counts = np.zeros(len(spans.tokens), bool)
        for first, last in learnt:
            counts |= (spans.begins >= first) & (spans.begins < last) & (spans.ends > spans.begins)
        return Learnt(spans.tokens, counts)

    def _append_end(self, tokens: np.ndarray) -> np.ndarray:
        """The tokens of an answer [N] with the token that ends it, unless it is there already."""
        if self.end is None or (len(tokens) and tokens[-1] == self.end):
            return tokens
        return np.append(tokens, np.int32(self.end))


def messages_of(record: Record) -> Messages:
    """The messages of a record. Raises RecordError if they are not what templates take."""
    if "messages" in record.fields:
        return checked_messages(record, record.fields["messages"])
    turns = record.fields["conversations"]
    known = isinstance(turns, Sequence) and all(
        isinstance(turn, Mapping) and turn.get("from") in _SPEAKERS for turn in turns
    )
    if not known:
        return checked_messages(record, turns)
    return [{"role": _SPEAKERS[turn["from"]], "content": turn.get("value")} for turn in turns]


def checked_messages(record: Record, messages: Any) -> Messages:
    """Messages as they stand in a record. Raises RecordError for anything else."""
    if (
        isinstance(messages, Sequence)
        and not isinstance(messages, str)
        and messages
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages)
    ):
        # Tables of parquet and arrow have all fields in every row.
        return [{k: v for k, v in m.items() if v is not None or k == "content"} for m in messages]
    raise RecordError(
        f"{record.place}: expected a list of messages, each with a role, such as "
        f'[{{"role": "user", "content": "…"}}], not {shortened(messages)}.'
    )


def _template_arguments(record: Record) -> dict[str, Any]:
    """What a record wants its template to be given. Raises RecordError for what has no names."""
    arguments = record.fields.get("chat_template_kwargs") or {}
    if not isinstance(arguments, Mapping):
        raise RecordError(
            f"{record.place}: expected an object in 'chat_template_kwargs', not "
            f"{shortened(arguments)}."
        )
    return dict(arguments)


def _write(
    template: ChatTemplate, messages: Messages, variables: Mapping[str, Any]
) -> tuple[str, list[tuple[int, tuple[int, int]]]]:
    """The text of a conversation, and the number of each message of the assistant with the
    characters of its answer."""
    text, generated = template.render(messages, **variables)
    numbers = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
    if template.marks_answers:
        if len(generated) != len(numbers):
            raise DataError(
                f"the chat template of {template.where} marks {len(generated)} of {len(numbers)} "
                "answers. Correct its generation blocks, or give another template."
            )
        return text, list(zip(numbers, generated, strict=True))
    return text, [
        (number, _span(template, messages, number, text, variables)) for number in numbers
    ]


def _span(
    template: ChatTemplate,
    messages: Messages,
    number: int,
    text: str,
    variables: Mapping[str, Any],
) -> tuple[int, int]:
    """The span of an answer in the text: after what the template writes to ask for it."""
    prompt = template.render(messages[:number], add_generation_prompt=True, **variables).text
    until = template.render(messages[: number + 1], **variables).text
    if not (text.startswith(until) and until.startswith(prompt)):
        raise DataError(
            f"the chat template of {template.where} writes message {number + 1} of "
            f"{len(messages)} differently when others follow, so its answer cannot be located in "
            "the text. Mark answers in the template with {% generation %} … "
            "{% endgeneration %}, or end the conversation there."
        )
    return len(prompt), len(until)
