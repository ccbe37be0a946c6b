"""The tasks of text encoders. Results are lines of tab-separated columns."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tokenizers

from launch.errors import DataError
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import SEPARATOR, open_reader, parts_of

SHOWN = 5  # candidates for a masked token
LONGEST_ANSWER = 30  # tokens
MASKS = ("[MASK]", "<mask>")  # what tokenizers call a masked token


def fill_mask(request: Request) -> None:
    """Prints, for each mask token, the most likely tokens and their probabilities."""
    reader = open_reader(request)
    text = reader.tokenizer.encode(request.input)
    masks = {reader.tokenizer.token_to_id(mask) for mask in MASKS} - {None}
    places = [i for i, token in enumerate(text.ids) if token in masks]
    if not places:
        raise DataError(
            f"--input={request.input!r} has no mask token. Write {' or '.join(MASKS)}, whichever "
            "the tokenizer has, in place of the word to predict."
        )
    probabilities = softmax(reader.outputs(reader.rows([text]))["logits"][0])
    for chances in probabilities[places]:
        best = np.argsort(-chances)[:SHOWN]
        words = reader.tokenizer.decode_batch([[int(t)] for t in best], skip_special_tokens=False)
        write_rows(zip(words, chances[best], strict=True))


def classify_text(request: Request) -> None:
    """Prints the classes and their probabilities, the most likely first, for a text or a pair of
    texts."""
    reader = open_reader(request)
    text, other = _texts(request)
    inputs = reader.rows([reader.tokenizer.encode(text, other)])
    logits = reader.outputs(inputs)["logits"][0]
    problem_type = reader.problem_type(len(logits))
    if problem_type not in _PROBABILITIES:
        raise reader.model.fields.fail("problem_type", f"choose one of {', '.join(_PROBABILITIES)}")
    probabilities = _PROBABILITIES[problem_type](logits)
    names = reader.labels(len(probabilities))
    write_rows((names[i], probabilities[i]) for i in np.argsort(-probabilities))


def _texts(request: Request) -> tuple[str, str | None]:
    """The text of the input, or both texts of a pair."""
    if request.input.count(SEPARATOR) != 1:
        return request.input, None
    text, other = parts_of(request, "a text, or two", count=2)
    return text, other


def classify_tokens(request: Request) -> None:
    """Prints every token's text, class and probability."""
    reader = open_reader(request)
    text = reader.tokenizer.encode(request.input)
    probabilities = softmax(reader.outputs(reader.rows([text]))["logits"][0])
    names = reader.labels(probabilities.shape[-1])
    best = np.argmax(probabilities, axis=-1)
    write_rows(
        (request.input[begin:end], names[best[i]], probabilities[i, best[i]])
        for i, (begin, end) in enumerate(text.offsets)
        if not text.special_tokens_mask[i]
    )


def answer(request: Request) -> None:
    """Prints the part of the context that answers the question, and its probability."""
    question, context = parts_of(request, "a question and its context", count=2)[:2]
    reader = open_reader(request)
    text = reader.tokenizer.encode(question, context)
    outputs = reader.outputs(reader.rows([text]))
    first, last, probability = best_span(text, outputs["start_logits"][0], outputs["end_logits"][0])
    write_rows([(context[text.offsets[first][0] : text.offsets[last][1]], probability)])


def best_span(
    text: tokenizers.Encoding, start_logits: np.ndarray, end_logits: np.ndarray
) -> tuple[int, int, float]:
    """The most likely first and last token of the second sequence, and their probability."""
    allowed = np.array([sequence == 1 for sequence in text.sequence_ids])
    start = softmax(np.where(allowed, start_logits, -np.inf))
    end = softmax(np.where(allowed, end_logits, -np.inf))
    both = np.triu(start[:, None] * end[None, :])
    both = np.tril(both, LONGEST_ANSWER - 1)
    first, last = np.unravel_index(np.argmax(both), both.shape)
    return int(first), int(last), float(both[first, last])


def choose(request: Request) -> None:
    """Prints the choices and their probabilities, the most likely first."""
    text, *choices = parts_of(request, "a text and two choices or more", count=3)
    reader = open_reader(request)
    rows = reader.rows([reader.tokenizer.encode(text, choice) for choice in choices])
    probabilities = softmax(
        reader.outputs({name: value[None] for name, value in rows.items()})["logits"][0]
    )
    write_rows((choices[i], probabilities[i]) for i in np.argsort(-probabilities))


def extract_features(request: Request) -> None:
    """Prints JSON: the vector of every token (`hidden`), and that of the text (`pooled`) if
    there is one."""
    reader = open_reader(request)
    outputs = reader.outputs(reader.rows([reader.tokenizer.encode(request.input)]))
    vectors = {name: value[0].tolist() for name, value in outputs.items()}
    sys.stdout.write(json.dumps(vectors) + "\n")


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """The independent probability of each label, FP64."""
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, FP64."""
    weights = np.exp(logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


_PROBABILITIES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
    "regression": lambda logits: logits,
}
"""Problem type -> what the outputs stand for."""


def write_rows(rows: Iterable[tuple[object, ...]]) -> None:
    """Prints tab-separated columns; fractions have four digits."""
    for row in rows:
        cells = (f"{x:.4f}" if isinstance(x, float | np.floating) else str(x) for x in row)
        sys.stdout.write("\t".join(cells) + "\n")


TASKS = (
    Task("fill-mask", "a text with [MASK] or <mask> in it", fill_mask),
    Task("text-classification", "a text, or two: a text | another", classify_text),
    Task("token-classification", "a text", classify_tokens),
    Task("question-answering", "a question | its context", answer),
    Task("multiple-choice", "a text | a choice | another | …", choose),
    Task("feature-extraction", "a text", extract_features),
)
