"""Questions with choices, of which one is right: as SWAG, RACE, ARC and HellaSwag write them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from launch.data.records import Record, RecordError, first_field, text_field
from launch.finetuning.text_examples import Reading, Row, encoder_row

TEXTS = ("article", "context", "ctx", "sent1", "premise", "text", "question")
"""What the choices are about."""

BEGINNINGS = ("question", "sent2")
"""What every choice goes on from, if it is not the text itself."""

CHOICES = ("choices", "endings", "options")
ENDINGS = tuple(f"ending{number}" for number in range(4))
"""Fields of a choice each, as in SWAG."""

RIGHT = ("label", "answer", "answerKey")


class _Choices(NamedTuple):
    """The texts of the choices, and what each is called, in order."""

    texts: Sequence[str]
    names: Sequence[str]


def read_question(record: Record, reading: Reading) -> Row | None:
    """An encoder's inputs [C, T] of a text and each of its choices; `choices` [C], False where
    other questions have more; `labels` [], the number of the right one, and `weights` []."""
    choices = _choices_of(record)
    first = text_field(record, TEXTS)
    known = [record.fields.get(name) for name in BEGINNINGS]
    beginning = next((text for text in known if text not in (None, first)), None)
    label = _right_one(record, choices)
    rows = []
    for choice in choices.texts:
        second = choice if beginning is None else f"{beginning} {choice}"
        row = encoder_row(reading.writer.tokenizer.spans(first, second, marks=True), reading)
        if row is None:
            return None
        rows.append(row)
    there = np.arange(reading.choices) < len(rows)
    rows += [rows[0]] * (reading.choices - len(rows))  # of which nothing counts
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**stacked, "choices": there, "labels": np.int32(label), "weights": np.float32(1)}


def count_choices(records: Iterable[Record]) -> int:
    """The most choices of a question; those that cannot be read are told of when they are."""
    most = 0
    for record in records:
        try:
            most = max(most, len(_choices_of(record).texts))
        except RecordError:
            continue
    return most


def _choices_of(record: Record) -> _Choices:
    given: Any = [record.fields[name] for name in ENDINGS if name in record.fields]
    given, names = given or first_field(record, CHOICES), None
    if isinstance(given, Mapping):  # as in ARC: two lists, of texts and of what they are called
        given, names = given.get("text"), given.get("label")
    texts = given if isinstance(given, list) else []
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise RecordError(
            f"{record.place}: expected two choices or more, as a list of texts, not {given!r}."
        )
    if not isinstance(names, list) or len(names) != len(texts):
        names = [chr(ord("A") + number) for number in range(len(texts))]
    return _Choices(texts, [str(name) for name in names])


def _right_one(record: Record, choices: _Choices) -> int:
    """The number of the right choice: given as such, by what it is called, or by its text."""
    value: Any = first_field(record, RIGHT)
    for known in (choices.names, choices.texts, list(map(str, range(len(choices.texts))))):
        if isinstance(value, str) and value in known:
            return known.index(value)
    if type(value) is int and 0 <= value < len(choices.texts):
        return value
    raise RecordError(
        f"{record.place}: the label {value!r} is none of the {len(choices.texts)} choices; give "
        f"its number from 0, its name ({', '.join(choices.names[:6])}) or its text."
    )
