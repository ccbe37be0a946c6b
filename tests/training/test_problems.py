"""What classifiers give: how labels are read, and labels that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from launch.data.records import Record, RecordError
from launch.errors import DataError
from launch.finetuning.problems import (
    CLASSES,
    NUMBERS,
    ONE_CLASS,
    PROBLEMS,
    choose_problem,
    name_labels,
)
from launch.finetuning.tasks import TASKS, find_labels

LABELS = {
    # labels of records, the model's problem, what was asked for -> problem, names, rows
    "names": (["b", "a"], ONE_CLASS, None, ONE_CLASS, ["a", "b"], [1, 0]),
    "numbers of classes": ([0, 2], ONE_CLASS, None, ONE_CLASS, ["LABEL_0", "LABEL_1", "LABEL_2"],
                           [0, 2]),
    "lists of names": ([["b", "a"], []], ONE_CLASS, None, CLASSES, ["a", "b"], [[1, 1], [0, 0]]),
    "lists of classes": ([[1], [0]], ONE_CLASS, None, CLASSES, ["LABEL_0", "LABEL_1"],
                         [[0, 1], [1, 0]]),
    "a number for each class": ([[1.0, 0.25]], ONE_CLASS, None, CLASSES, ["LABEL_0", "LABEL_1"],
                                [[1, 0.25]]),
    "numbers": ([0.5, 3], ONE_CLASS, None, NUMBERS, ["LABEL_0"], [[0.5], [3]]),
    "stars that are asked for as numbers": ([1, 5], ONE_CLASS, NUMBERS, NUMBERS, ["LABEL_0"],
                                            [[1], [5]]),
    "stars of a model of numbers": ([1, 5], NUMBERS, None, NUMBERS, ["LABEL_0"], [[1], [5]]),
    "several numbers": ([[1.5, 2.0]], NUMBERS, None, NUMBERS, ["LABEL_0", "LABEL_1"], [[1.5, 2]]),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_labels_say_what_a_classifier_gives(name: str) -> None:
    values, known, asked, problem, names, rows = LABELS[name]
    assert choose_problem(values, known, asked) == problem
    assert name_labels(values, problem, []) == names
    read = [PROBLEMS[problem].read(Record({}, "here"), value, names) for value in values]
    np.testing.assert_array_equal(read, rows)


@pytest.mark.parametrize(
    ("problem", "value", "message"),
    [
        (ONE_CLASS, "c", "here: the label 'c' is not one of the 2 classes a, b"),
        (ONE_CLASS, ["a"], r"here: the label \['a'\] is not one of the 2 classes"),
        (ONE_CLASS, True, "here: the label True is not one of"),
        (CLASSES, "a", "here: expected a list of classes, which may be empty, not 'a'"),
        (CLASSES, ["c"], "here: the label 'c' is not one of"),
        (CLASSES, [0.5], r"here: expected 2 numbers from 0 to 1, not \[0.5\]"),
        (CLASSES, [0.5, 1.5], r"here: expected 2 numbers from 0 to 1, not \[0.5, 1.5\]"),
        (CLASSES, [0.5, "a"], r"here: expected 2 numbers from 0 to 1, not \[0.5, 'a'\]"),
        (NUMBERS, "good", r"here: expected 2 numbers, not \['good'\]"),
        (NUMBERS, [1.0, float("nan")], r"here: expected 2 numbers, not \[1.0, nan\]"),
    ],
)
def test_labels_that_cannot_be_are_named(problem: str, value: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        PROBLEMS[problem].read(Record({}, "here"), value, ["a", "b"])


def test_an_unknown_problem_of_a_model_is_named() -> None:
    with pytest.raises(DataError, match="problem_type=ranking is unknown; choose one of single_"):
        choose_problem(["a"], "ranking", None)


def test_the_label_of_a_record_is_the_field_that_will_be_read() -> None:
    task = TASKS["text-classification"]
    records = [
        Record({"label": "good", "labels": [0.5]}, "first"),
        Record({"labels": "bad"}, "second"),
        Record({"label": None, "text": "a"}, "third"),
    ]
    assert find_labels(task, records) == ["good", "bad"]
