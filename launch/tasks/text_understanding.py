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
LONGEST_ANSWER = 15  # tokens, as in transformers' pipeline for questions
ANSWERED = 384  # tokens of a question and a part of its context, as there
MASKS = ("[MASK]", "<mask>")  # what tokenizers call a masked token


def fill_mask(request: Request) -> None:
    """Prints, for each mask token, the most likely tokens and their probabilities."""
    reader = open_reader(request)
    text = reader.encode(request.input)
    masks = {reader.tokenizer.token_to_id(mask) for mask in MASKS} - {None}
    places = [i for i, token in enumerate(text.ids) if token in masks]
    if not places:
        raise DataError(
            f"--input={request.input!r} has no mask token in what the model reads. Write "
            f"{' or '.join(MASKS)}, whichever the tokenizer has, in place of the word to predict."
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
    inputs = reader.rows([reader.encode(text, other)])
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
    """Prints every token's text, class and probability: of tokens that stand in several windows,
    those of the window that is most certain, as transformers' pipeline has it."""
    reader = open_reader(request)
    windows = reader.windows(request.input)
    best: dict[tuple[int, int], np.ndarray] = {}
    for text, outputs in zip(windows, reader.outputs_of(windows), strict=True):
        for i, chances in enumerate(softmax(outputs["logits"])):
            span = text.offsets[i]
            other = best.get(span)
            if not text.special_tokens_mask[i] and (other is None or chances.max() > other.max()):
                best[span] = chances
    names = reader.labels(len(next(iter(best.values()), ())))
    write_rows(
        (request.input[begin:end], names[np.argmax(chances)], chances.max())
        for (begin, end), chances in sorted(best.items(), key=lambda row: row[0])
    )


def answer(request: Request) -> None:
    """Prints the part of the context that answers the question, and its probability: the likeliest
    of all windows of a long context."""
    question, context = parts_of(request, "a question and its context", count=2)[:2]
    reader = open_reader(request)
    windows = reader.windows(question, context, size=ANSWERED)
    spans = (
        (text, *best_span(text, outputs["start_logits"], outputs["end_logits"]))
        for text, outputs in zip(windows, reader.outputs_of(windows), strict=True)
    )
    text, first, last, probability = max(spans, key=lambda span: span[-1])
    begin, end = _words(text, first, last)
    write_rows([(context[begin:end], probability)])


def best_span(
    text: tokenizers.Encoding, start_logits: np.ndarray, end_logits: np.ndarray
) -> tuple[int, int, float]:
    """The most likely first and last token of the second sequence, and their probability: what goes
    to a mark in front of both is that of no answer."""
    allowed = np.array([sequence == 1 for sequence in text.sequence_ids])
    none = np.arange(len(allowed)) < text.special_tokens_mask[0]
    start, end = (
        np.where(allowed, softmax(np.where(allowed | none, logits, -np.inf)), 0)
        for logits in (start_logits, end_logits)
    )
    both = np.triu(start[:, None] * end[None, :])
    both = np.tril(both, LONGEST_ANSWER - 1)
    first, last = np.unravel_index(np.argmax(both), both.shape)
    return int(first), int(last), float(both[first, last])


def _words(text: tokenizers.Encoding, first: int, last: int) -> tuple[int, int]:
    """The characters of the whole words that two tokens of the second sequence stand in, or of the
    tokens where the tokenizer knows no words."""
    words = text.token_to_word(first), text.token_to_word(last)
    spans = [None if word is None else text.word_to_chars(word, 1) for word in words]
    begin, end = spans
    return (
        text.offsets[first][0] if begin is None else begin[0],
        text.offsets[last][1] if end is None else end[1],
    )


def choose(request: Request) -> None:
    """Prints the choices and their probabilities, the most likely first."""
    text, *choices = parts_of(request, "a text and two choices or more", count=3)
    reader = open_reader(request)
    rows = reader.rows([reader.encode(text, choice) for choice in choices])
    probabilities = softmax(
        reader.outputs({name: value[None] for name, value in rows.items()})["logits"][0]
    )
    write_rows((choices[i], probabilities[i]) for i in np.argsort(-probabilities))


def extract_features(request: Request) -> None:
    """Prints JSON: the vector of every token (`hidden`), and that of the text (`pooled`) if
    there is one."""
    reader = open_reader(request)
    outputs = reader.outputs(reader.rows([reader.encode(request.input)]))
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
