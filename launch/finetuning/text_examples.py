"""Records of texts as rows of fixed length. Every reader takes a record and a `Reading`, and gives
a row, or None if the record is to be left out, which it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from launch.data.records import (
    Counts,
    Record,
    RecordError,
    field_of,
    first_field,
    missing_field,
    text_field,
)
from launch.finetuning.conversations import ANSWERS, Learnt, Writer, checked_messages
from launch.finetuning.problems import ONE_CLASS, PROBLEMS, read_class
from launch.finetuning.spelling import Spelling
from launch.sound_inputs import SoundInput
from launch.text import Spans

Row = Mapping[str, Any]  # arrays without the leading dimension of batches

FIRST_TEXTS = ("text", "sentence", "sentence1", "premise", "question")
SECOND_TEXTS = ("text_pair", "sentence2", "hypothesis")
LABELS = ("label", "labels")
TOKEN_LABELS = ("labels", "tags", "ner_tags")
SOURCES = ("source", "input", "prompt", "document", "article")
TARGETS = ("target", "summary", "highlights", *ANSWERS)


@dataclass
class Reading:
    """The tokenizer, lengths and labels by which records are read.

    Attributes:
      writer: makes tokens.
      length: of a row, in tokens.
      labels: names of the classes, in order.
      problem: what a classifier gives, a name of PROBLEMS.
      pad: the token that fills rows.
      has_types: whether the model tells first and second texts apart.
      start: the token that a decoder's text begins with.
      opening: the tokens that a transcription begins with.
      sound: what the model takes of sounds.
      spelling: the letters that it writes.
      choices: the most that a question has.
      drops: whether records that are longer than a row are left out, or lose their ends.
      counts: what becomes of records.
    """

    writer: Writer
    length: int
    labels: Sequence[str] = ()
    problem: str = ONE_CLASS
    pad: int = 0
    has_types: bool = False
    start: int = 0
    opening: Sequence[int] = ()
    sound: SoundInput | None = None
    spelling: Spelling | None = None
    choices: int = 0
    drops: bool = False
    counts: Counts = field(default_factory=Counts)

    def fits(self, length: int) -> bool:
        """Whether a text of this length is used; counts it if it does not fit."""
        if length <= self.length:
            return True
        if self.drops:
            self.counts.dropped += 1
            return False
        self.counts.truncated += 1
        return True

    def filled(self, values: np.ndarray, fill: Any = 0) -> np.ndarray:
        """The values, cut or filled up to the length of a row."""
        values = values[: self.length]
        return np.pad(values, (0, self.length - len(values)), constant_values=fill)

    def labels_of(self, record: Record) -> Row:
        """`labels` [] or [L] of a record as a whole, and `weights` []."""
        value = first_field(record, LABELS)
        labels = PROBLEMS[self.problem].read(record, value, self.labels)
        return {"labels": labels, "weights": np.float32(1)}


def preference(record: Record, reading: Reading) -> Row | None:
    """`chosen` and `rejected`, each with `tokens`, `targets` and `weights` [T]."""
    prompt, chosen, rejected = _pair(record)
    rows: dict[str, Row] = {}
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        row = _next_tokens(reading.writer.answered(record, prompt, answer), reading)
        if row is None:
            return None
        rows[name] = row
    return rows


def labelled_text(record: Record, reading: Reading) -> Row | None:
    """An encoder's inputs of one text or two, and `Reading.labels_of`."""
    first = text_field(record, FIRST_TEXTS)
    second = next((record.fields[n] for n in SECOND_TEXTS if record.fields.get(n)), None)
    labels = reading.labels_of(record)
    row = encoder_row(reading.writer.tokenizer.spans(first, second, marks=True), reading)
    return row and {**row, **labels}


def labelled_words(record: Record, reading: Reading) -> Row | None:
    """An encoder's inputs of `tokens`, a list of words; `labels` and `weights` [T] stand at the
    first token of each word."""
    words, labels = field_of(record, "tokens"), first_field(record, TOKEN_LABELS)
    lists = isinstance(words, list) and isinstance(labels, list) and len(words) == len(labels)
    if not (lists and all(isinstance(word, str) for word in words)):
        raise RecordError(
            f"{record.place}: expected one label for each word in `tokens`, in two lists of the "
            "same length."
        )
    numbers = np.array([read_class(record, label, reading.labels) for label in labels], np.int32)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    spans = reading.writer.tokenizer.spans(" ".join(words), marks=True)
    row = encoder_row(spans, reading)
    if row is None:
        return None
    # The space before a word may belong to its first token.
    word = np.searchsorted(starts - 1, spans.begins, side="right") - 1
    real = (spans.parts >= 0) & (spans.ends > spans.begins)
    before = np.concatenate([[-1], word[:-1]])
    first = real & ((word != before) | ~np.concatenate([[False], real[:-1]]))
    targets = np.where(first, numbers[word] if len(numbers) else 0, 0)
    return {
        **row,
        "labels": reading.filled(targets.astype(np.int32)),
        "weights": reading.filled(first.astype(np.float32)),
    }


def answered_question(record: Record, reading: Reading) -> Row | None:
    """An encoder's inputs of question and context, and `begins` and `ends` []: the answer's first
    and last token, or 0, the very first, for a question without an answer."""
    question, context = text_field(record, ("question",)), text_field(record, ("context",))
    first, last = _answer(record, context)
    spans = reading.writer.tokenizer.spans(question, context, marks=True)
    row = encoder_row(spans, reading)
    if row is None:
        return None
    begin = end = 0
    if last > first:
        inside = (spans.parts == 1) & (spans.begins < last) & (spans.ends > first)
        places = np.flatnonzero(inside[: reading.length])
        if len(places) < inside.sum() or not len(places):  # it was cut off
            reading.counts.truncated -= 1
            reading.counts.dropped += 1
            return None
        begin, end = int(places[0]), int(places[-1])
    return {
        **row,
        "begins": np.int32(begin),
        "ends": np.int32(end),
        "weights": np.float32(1),
    }


def hidden_text(record: Record, reading: Reading) -> Row | None:
    """An encoder's inputs of a text, and `choosable` [T]: its tokens but the marks."""
    spans = reading.writer.tokenizer.spans(text_field(record, FIRST_TEXTS), marks=True)
    row = encoder_row(spans, reading)
    return row and {**row, "choosable": reading.filled(spans.parts >= 0, False)}


def source_and_target(record: Record, reading: Reading) -> Row | None:
    """`source`, `real` [T], and `tokens`, `targets`, `weights` [T] of the target."""
    tokenizer = reading.writer.tokenizer
    source = tokenizer.encode(text_field(record, SOURCES), marks=True)
    target = tokenizer.encode(text_field(record, TARGETS), marks=True)
    if not reading.fits(max(len(source), len(target))):
        return None
    before = np.concatenate([[reading.start], target[:-1]]).astype(np.int32)
    return {
        "source": reading.filled(source, reading.pad),
        "real": reading.filled(np.ones(len(source), bool), False),
        "tokens": reading.filled(before, reading.pad),
        "targets": reading.filled(target),
        "weights": reading.filled(np.ones(len(target), np.float32)),
    }


def _next_tokens(learnt: Learnt, reading: Reading) -> Row | None:
    tokens, counts = learnt
    if not counts[1:].any():
        reading.counts.empty += 1
        return None
    if not reading.fits(len(tokens) - 1):
        return None
    kept = slice(reading.length)
    row = {
        "tokens": tokens[:-1][kept],
        "targets": tokens[1:][kept],
        "weights": counts[1:][kept].astype(np.float32),
    }
    if not row["weights"].any():  # only the question is left
        reading.counts.truncated -= 1
        reading.counts.dropped += 1
        return None
    return {name: reading.filled(values) for name, values in row.items()}


def encoder_row(spans: Spans, reading: Reading) -> dict[str, Any] | None:
    """An encoder's inputs [T] of tokens with their marks; None if they are left out."""
    if not reading.fits(len(spans.tokens)):
        return None
    row = {
        "tokens": reading.filled(spans.tokens, reading.pad),
        "real": reading.filled(np.ones(len(spans.tokens), bool), False),
    }
    if reading.has_types:
        # The marks after a text belong to it.
        types = np.maximum.accumulate(np.maximum(spans.parts, 0)).astype(np.int32)
        row["types"] = reading.filled(types)
    return row


def _pair(record: Record) -> tuple[Any, Any, Any]:
    """(prompt, chosen, rejected): texts or messages; what both answers begin with is the prompt if
    the record has none."""
    chosen, rejected = field_of(record, "chosen"), field_of(record, "rejected")
    prompt = record.fields.get("prompt")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RecordError(
            f"{record.place}: `chosen` and `rejected` must both be text or both be messages."
        )
    if prompt is not None:
        if isinstance(prompt, str) and not isinstance(chosen, str):
            prompt = [{"role": "user", "content": prompt}]
        return prompt, chosen, rejected
    if isinstance(chosen, str):
        raise missing_field(record.place, "prompt", record.fields)
    lists = [checked_messages(record, messages) for messages in (chosen, rejected)]
    same = 0
    while same < min(map(len, lists)) - 1 and lists[0][same] == lists[1][same]:
        same += 1
    return lists[0][:same], lists[0][same:], lists[1][same:]


def _answer(record: Record, context: str) -> tuple[int, int]:
    """The characters of the first answer in the context, (0, 0) if there is none."""
    answers = field_of(record, "answers")
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    starts = answers.get("answer_start") if isinstance(answers, Mapping) else None
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise RecordError(
            f"{record.place}: expected `answers` with the lists `text` and `answer_start`, as in "
            "SQuAD."
        )
    if not texts:
        return 0, 0
    first, last = starts[0], starts[0] + len(texts[0])
    if context[first:last] != texts[0]:
        raise RecordError(
            f"{record.place}: the context has {context[first:last]!r} at character {first}, but "
            f"the answer is {texts[0]!r}."
        )
    return first, last
