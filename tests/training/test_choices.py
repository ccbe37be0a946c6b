"""Questions with choices as data sets write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from launch.data.records import Record, RecordError
from launch.finetuning.choices import count_choices, read_question
from launch.finetuning.conversations import Writer
from launch.finetuning.text_examples import Reading
from launch.text import ByteTokenizer

FORMS = {
    "SWAG": (
        {"sent1": "He runs.", "sent2": "He", "ending0": "sits.", "ending1": "falls.", "label": 1},
        ("He runs.", "He falls.", 1),
    ),
    "HellaSwag": (
        {"ctx": "A man", "endings": ["sits.", "falls."], "label": "0"},
        ("A man", "sits.", 0),
    ),
    "RACE": (
        {"article": "He ran.", "question": "Who?", "options": ["She.", "He."], "answer": "B"},
        ("He ran.", "Who? He.", 1),
    ),
    "ARC": (
        {"question": "Why?", "choices": {"text": ["So.", "No."], "label": ["1", "2"]},
         "answerKey": "2"},
        ("Why?", "No.", 1),
    ),
    "by its text": (
        {"question": "Why?", "choices": ["So.", "No."], "answer": "So."}, ("Why?", "So.", 0),
    ),
}  # fmt: skip


def reading(choices: int) -> Reading:
    return Reading(Writer(ByteTokenizer(), None, None), 32, choices=choices)


@pytest.mark.parametrize("form", FORMS)
def test_the_right_choice_of_every_form(form: str) -> None:
    fields, (first, second, label) = FORMS[form]
    record = Record(fields, "here")
    assert count_choices([record]) == 2
    row = read_question(record, reading(3))
    assert row is not None
    assert row["labels"] == label
    assert row["choices"].tolist() == [True, True, False]
    spans = ByteTokenizer().spans(first, second, marks=True)
    np.testing.assert_array_equal(row["tokens"][label][row["real"][label]], spans.tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"choices": ["a"]},
            r"expected two choices or more, as a list of texts, not \['a'\]",
        ),
        ({"choices": ["a", 1]}, "here: expected two choices or more"),
        ({"choices": "ab"}, "here: expected two choices or more, as a list of texts, not 'ab'"),
        ({}, "here: no field 'choices' or 'endings' or 'options'"),
        ({"choices": ["a", "b"]}, "here: no field 'label' or 'answer'"),
        (
            {"choices": ["a", "b"], "label": 2},
            r"the label 2 is none of the 2 choices; .*A, B",
        ),
        ({"choices": ["a", "b"], "label": "C"}, "here: the label 'C' is none of the 2 choices"),
    ],
)
def test_questions_that_cannot_be_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        read_question(Record({"question": "Why?", **fields}, "here"), reading(2))
