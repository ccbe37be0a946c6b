"""Texts longer than the context, in windows: the answers of transformers on the same windows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.tasks.text_reader import OVERLAP
from launch.tasks.text_understanding import LONGEST_ANSWER
from tests.launch.test_text_tasks import WORDS, output, tokenizer, write

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the reference needs the extra `parity`"
)
torch = pytest.importorskip("torch", reason="torch is not installed")

CONTEXT = 32  # of the model
STRIDE = min(CONTEXT // 2, OVERLAP)
LABELLED = WORDS[5:]


def reference_of(directory: Path, head: str) -> tuple[Any, Any]:
    """The model and the tokenizer as transformers has them."""
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(),
        model_max_length=CONTEXT,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    made.save_pretrained(directory)
    model = getattr(transformers, head).from_pretrained(directory)
    return model.eval(), made


def long_text(seed: int, words: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(LABELLED, words))


@pytest.mark.parametrize(("seed", "words"), [(0, 20), (1, 31), (2, 90), (3, 400)])
def test_tokens_have_the_classes_of_the_pipeline(
    seed: int, words: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pipeline joins windows only where it groups tokens; its steps are run without that."""
    directory = write(tmp_path / "model", "BertForTokenClassification")
    model, made = reference_of(directory, "BertForTokenClassification")
    text = long_text(seed, words)
    pipeline = transformers.TokenClassificationPipeline(
        model=model, tokenizer=made, aggregation_strategy="simple", stride=STRIDE
    )
    with torch.no_grad():
        windows = [
            pipeline._forward(each)
            for each in pipeline.preprocess(text, **pipeline._preprocess_params)
        ]
    none = transformers.pipelines.token_classification.AggregationStrategy.NONE
    expected = pipeline.postprocess(windows, none, ignore_labels=[])
    found = output(directory, text, capsys)
    assert len(found) == words
    assert [label for _, label, _ in found] == [entity["entity"] for entity in expected]
    np.testing.assert_allclose(
        [float(chance) for *_, chance in found], [entity["score"] for entity in expected], atol=1e-4
    )


@pytest.mark.parametrize(("seed", "words"), [(0, 15), (1, 26), (2, 90), (3, 400)])
def test_answers_are_the_likeliest_of_all_windows(
    seed: int, words: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"0": "start", "1": "end"}
    directory = write(tmp_path / "model", "BertForQuestionAnswering", id2label=labels)
    model, made = reference_of(directory, "BertForQuestionAnswering")
    context = long_text(seed, words)
    windows = made(
        "where is it",
        context,
        truncation="only_second",
        max_length=CONTEXT,
        stride=STRIDE,
        padding=True,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_tensors="np",
    )
    best = (-1.0, 0, 0)
    for i in range(len(windows["input_ids"])):
        inputs = {
            name: torch.from_numpy(windows[name][i : i + 1])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        }
        with torch.no_grad():
            done = model(**inputs)
        sees = np.array([part == 1 for part in windows.sequence_ids(i)])
        counts = sees | (windows["input_ids"][i] == made.cls_token_id)
        start, end = (
            np.where(sees, torch.softmax(torch.where(torch.from_numpy(counts), x[0], -1e4), -1), 0)
            for x in (done.start_logits, done.end_logits)
        )
        for first in np.flatnonzero(sees):
            for last in range(first, min(first + LONGEST_ANSWER, len(sees))):
                begin, finish = windows["offset_mapping"][i][[first, last], [0, 1]]
                best = max(best, (float(start[first] * end[last]), int(begin), int(finish)))
    [(answer, chance)] = output(directory, f"where is it | {context}", capsys)
    assert answer == context[best[1] : best[2]]
    assert abs(float(chance) - best[0]) < 1e-4
