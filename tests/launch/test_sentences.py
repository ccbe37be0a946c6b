"""Directories of sentence-transformers: what their files say, and the task."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cosine

from launch.tasks.table import run_checkpoint
from models.errors import ConfigError
from models.sentences.config import Normalise, Pool, read_sentence_config
from tests.launch.sentence_files import FOLDERS, write_modules
from tests.launch.test_text_tasks import logits, output, request, write


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ["mean"]),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode": "lasttoken"}, ["lasttoken"]),
        ({}, ["mean"]),
    ],
)
def test_poolings(tmp_path: Path, pooling: dict[str, Any], modes: list[str]) -> None:
    write_modules(tmp_path, pooling)
    config = read_sentence_config(tmp_path, "cls")
    assert config.modules == (Pool(tuple(modes)), Normalise())
    assert config.longest == 9


@pytest.mark.parametrize(
    ("pooling", "folders", "message"),
    [
        ({"pooling_mode": "median"}, FOLDERS, "choose from cls, max, mean"),
        (
            {"include_prompt": False},
            FOLDERS,
            "leaving the prompt out of the pooling is not supported",
        ),
        ({}, {"": "Transformer", "1_CNN": "CNN"}, "has a module 'CNN'"),
        ({}, {"1_Pooling": "Pooling"}, "has a module 'Pooling' where"),
        ({}, {"": "Transformer", "../x": "Pooling"}, "outside its directory"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, pooling: dict[str, Any], folders: dict[str, str], message: str
) -> None:
    write_modules(tmp_path, pooling, folders)
    with pytest.raises(ConfigError, match=message):
        read_sentence_config(tmp_path, "cls")


def test_a_limit_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, {})
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": Infinity}')
    with pytest.raises(ConfigError, match="must be a positive number"):
        read_sentence_config(tmp_path, "cls")


def test_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "BertModel")
    write_modules(directory, {"pooling_mode": "cls"}, {"": "Transformer", "1_Pooling": "Pooling"})
    texts = ["the cat sat", "on a mat", "where is it"]
    vectors = [logits(directory, [f"[CLS] {text} [SEP]"])["hidden"][0, 0] for text in texts]
    [[vector]] = output(directory, texts[0], capsys)
    np.testing.assert_allclose(json.loads(vector), vectors[0], atol=1e-5)
    lines = output(directory, " | ".join(texts), capsys)
    assert [text for text, _ in lines] == texts[1:]
    expected = [1 - cosine(vectors[0], other) for other in vectors[1:]]
    np.testing.assert_allclose([float(near) for _, near in lines], expected, atol=6e-5)
    run_checkpoint(request(directory, texts[0]), "embed")
