"""The tasks of encoders and of text-to-text models, on directories as a user has them."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.special import expit, softmax
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from launch.errors import LaunchError
from launch.tasks.table import run_checkpoint
from launch.tasks.task import Request
from launch.tasks.text_understanding import LONGEST_ANSWER, best_span
from models import pretrained
from models.parameters import merge
from models.sampling import Sampling
from models.weights.generation import Generation
from tests.launch.random_models import write_model
from tests.models.parity.text_cases import ENCODER, T5

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GREEDY = Generation(Sampling(temperature=0.0), 6)
WORDS = [*MARKS, "the", "cat", "sat", "on", "a", "mat", "where", "is", "it"]
LABELS = {"0": "bad", "1": "fine", "2": "good"}


def tokenizer() -> Tokenizer:
    """One token per word, with BERT's marks."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    made.add_special_tokens(MARKS)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.enable_padding(length=20)  # as files of published models often say
    return made


def write(directory: Path, name: str, **changes: object) -> Path:
    """A random model's directory."""
    base = T5 if name.startswith("T5") else {**ENCODER, "pad_token_id": 0, "id2label": LABELS}
    write_model(directory, name, {**base, **changes})
    tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def request(directory: Path, text: str) -> Request:
    return Request(directory, text, "data=1,model=2", None, GREEDY, 0)


def output(directory: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The columns of what the task writes."""
    capsys.readouterr()
    run_checkpoint(request(directory, text), None)
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def logits(directory: Path, texts: list[str], types: list[int] | None = None):
    """What the model itself makes of the words."""
    model = pretrained.load(directory)
    tokens = np.array([[WORDS.index(word) for word in text.split()] for text in texts])
    kinds = {} if types is None else {"types": np.array([types] * len(texts))}
    return run(model.graph, model.parameters, tokens, **kinds)


@jax.jit(static_argnums=0)
def run(graph, parameters, tokens, **inputs):
    return merge(graph, parameters)(tokens, **inputs)


def test_fill_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertForMaskedLM", vocab_size=len(WORDS))
    lines = output(directory, "the [MASK] sat", capsys)
    chances = softmax(logits(directory, ["[CLS] the [MASK] sat [SEP]"])["logits"][0, 2])
    best = np.argsort(-chances)[:5]
    assert [word for word, _ in lines] == [WORDS[i] for i in best]
    np.testing.assert_allclose([float(p) for _, p in lines], chances[best], atol=6e-5)
    with pytest.raises(LaunchError, match="has no mask token"):
        run_checkpoint(request(directory, "the cat sat"), None)


def test_text_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertForSequenceClassification")
    lines = output(directory, "the cat sat", capsys)
    chances = softmax(logits(directory, ["[CLS] the cat sat [SEP]"])["logits"][0])
    order = np.argsort(-chances)
    assert [name for name, _ in lines] == [LABELS[str(i)] for i in order]
    np.testing.assert_allclose([float(p) for _, p in lines], chances[order], atol=6e-5)


def test_labels_that_do_not_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(
        tmp_path / "model",
        "BertForSequenceClassification",
        problem_type="multi_label_classification",
    )
    lines = output(directory, "the cat | sat", capsys)
    pair, types = "[CLS] the cat [SEP] sat [SEP]", [0, 0, 0, 0, 1, 1]
    chances = expit(logits(directory, [pair], types)["logits"][0])
    order = np.argsort(-chances)
    assert [name for name, _ in lines] == [LABELS[str(i)] for i in order]
    np.testing.assert_allclose([float(p) for _, p in lines], chances[order], atol=6e-5)


def test_token_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertForTokenClassification")
    lines = output(directory, "the cat  sat", capsys)
    chances = softmax(logits(directory, ["[CLS] the cat sat [SEP]"])["logits"][0, 1:4], axis=-1)
    assert [word for word, _, _ in lines] == ["the", "cat", "sat"]
    assert [label for _, label, _ in lines] == [LABELS[str(i)] for i in chances.argmax(axis=-1)]


def test_question_answering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertForQuestionAnswering")
    context = "the cat sat on a mat"
    [(answer, _)] = output(directory, f"where is it | {context}", capsys)
    text = f"[CLS] where is it [SEP] {context} [SEP]"
    scores = logits(directory, [text], types=[0] * 5 + [1] * 7)
    start, end = scores["start_logits"][0, 5:11], scores["end_logits"][0, 5:11]
    totals = {(i, j): start[i] + end[j] for i in range(6) for j in range(i, 6)}
    first, last = max(totals, key=totals.__getitem__)
    assert answer == " ".join(context.split()[first : last + 1])
    with pytest.raises(LaunchError, match="a question and its context"):
        run_checkpoint(request(directory, "where is it"), None)


def test_answers_are_not_longer_than_the_limit() -> None:
    text = tokenizer().encode("where", " ".join(["cat"] * 40))
    scores = np.zeros((2, len(text.ids)))
    scores[0, 3], scores[1, 3 + 39], scores[1, 3 + LONGEST_ANSWER - 1] = 5.0, 8.0, 4.0
    first, last, _ = best_span(text, *scores)
    assert (first, last) == (3, 3 + LONGEST_ANSWER - 1)


def test_multiple_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertForMultipleChoice")
    lines = output(directory, "where is it | the mat | on the mat", capsys)
    scores = [
        logits(
            directory,
            [f"[CLS] where is it [SEP] {choice} [SEP]"],
            types=[0] * 5 + [1] * (len(choice.split()) + 1),
        )["logits"]
        for choice in ("the mat", "on the mat")
    ]
    chances = softmax(np.array([score.reshape(-1)[0] for score in scores]))
    expected = sorted(zip(("the mat", "on the mat"), chances, strict=True), key=lambda row: -row[1])
    assert [choice for choice, _ in lines] == [choice for choice, _ in expected]
    np.testing.assert_allclose([float(p) for _, p in lines], [p for _, p in expected], atol=6e-5)


@pytest.mark.parametrize("name", ["RobertaModel", "ModernBertModel"])
def test_feature_extraction(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    directory = write(tmp_path / "model", name)
    vectors = json.loads(output(directory, "the cat sat", capsys)[0][0])
    expected = logits(directory, ["[CLS] the cat sat [SEP]"])
    assert set(vectors) == set(expected)
    for kind, value in expected.items():
        np.testing.assert_allclose(vectors[kind], value[0], rtol=1e-5, atol=1e-5)


def test_the_end_of_a_long_text_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path / "model", "BertForSequenceClassification")
    run_checkpoint(request(directory, "the " + "cat " * 39), None)
    whole = capsys.readouterr()
    assert "42 tokens, but the model's context is 32: the end is left out" in whole.err
    run_checkpoint(request(directory, "the " + "cat " * 29), None)
    cut = capsys.readouterr()
    assert whole.out == cut.out
    assert "left out" not in cut.err


def test_text_to_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"vocab_size": len(WORDS) + 2, "eos_token_id": len(WORDS)}
    directory = write(tmp_path / "model", "T5ForConditionalGeneration", **changes)
    [[text]] = output(directory, "the cat sat", capsys)
    model = pretrained.load(directory)
    source = np.array([[WORDS.index(word) for word in ("[CLS]", "the", "cat", "sat", "[SEP]")]])
    target = [0]
    while len(target) < 7 and target[-1] != len(WORDS):
        padded = np.array([target + [0] * (7 - len(target))])  # later tokens change nothing
        scores = run(model.graph, model.parameters, padded, source=source)
        target.append(int(np.argmax(scores[0, len(target) - 1])))
    assert text == tokenizer().decode(target[1:])


@pytest.mark.parametrize(
    ("change", "flag"), [({"loras": ["a.safetensors"]}, "--lora"), ({"steps": 3}, "--steps")]
)
def test_what_only_pipelines_understand_is_refused(
    tmp_path: Path, change: dict[str, object], flag: str
) -> None:
    asked = replace(request(write(tmp_path, "BertForMaskedLM"), "the [MASK]"), **change)
    with pytest.raises(LaunchError, match=f"{flag}: for pipelines that paint images"):
        run_checkpoint(asked, None)


def test_what_does_not_suit_is_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", "BertForQuestionAnswering")
    with pytest.raises(LaunchError, match="40 tokens, which leaves no room for the other"):
        run_checkpoint(request(directory, "cat " * 40 + "| the mat"), None)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(LaunchError, match=r"holds no tokenizer\.json"):
        run_checkpoint(request(directory, "cat | the mat"), None)


@pytest.mark.parametrize(
    ("config", "has_types"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}, False),
        (
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "token_type_ids"],
            },
            True,
        ),
    ],
)
def test_the_tokenizer_decides_on_token_types(
    config: dict[str, object], has_types: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As transformers does, by the class of the tokenizer or by `model_input_names`."""
    directory = write(tmp_path, "BertForSequenceClassification")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    found = {label: float(share) for label, share in output(directory, "the cat | a mat", capsys)}
    encoded = tokenizer().encode("the cat", "a mat")
    length = sum(encoded.attention_mask)
    tokens, types = (np.array([ids[:length]]) for ids in (encoded.ids, encoded.type_ids))
    model = pretrained.load(directory)
    outputs = merge(model.graph, model.parameters)(tokens, types=types if has_types else None)
    expected = softmax(np.asarray(outputs["logits"])[0])
    np.testing.assert_allclose([found[LABELS[str(i)]] for i in range(3)], expected, atol=1e-4)
