"""Texts of image models as tokens, against transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from launch.prompt_text import open_clip_text
from launch.text import find_tokenizer
from tests.launch.piece_files import KINDS, write_pieces
from tests.launch.piece_files import TEXTS as PIECE_TEXTS
from tests.launch.test_media_tasks import write_words

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: it needs the extra `parity`"
)

TEXTS = ["a cat", "A  CAT!", "it's 12 cats, isn't it?", "", "zebra\n\tcat"]


@pytest.mark.parametrize("length", [8, 40])
def test_tokens_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    write_words(tmp_path)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    got = open_clip_text(tmp_path).rows(TEXTS, length)
    expected = theirs(TEXTS, padding="max_length", max_length=length, truncation=True)
    np.testing.assert_array_equal(got, expected["input_ids"])


WORDS = [
    "A cat's  12 cats",
    " größer ≠ kleiner",
    "",
    "\n\n zebra\tcat <s> <|endoftext|>",
    "e\u0301",
]
MARKS = ["<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "RobertaTokenizer", "Qwen2Tokenizer"])
def test_vocabularies_with_merges_are_read_as_transformers_does(name: str, tmp_path: Path) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([*WORDS, "cats cats größer zebra"] * 3, 330, special_tokens=MARKS)
    trained.save_model(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ours = find_tokenizer(tmp_path, 400)
    for text in WORDS:
        assert ours.encode(text, marks=True).tolist() == theirs(text)["input_ids"], text


@pytest.mark.parametrize("name", KINDS)
def test_pieces_are_read_as_transformers_does(name: str, tmp_path: Path) -> None:
    settings = {"add_bos_token": True} if name in ("LlamaTokenizer", "GemmaTokenizer") else {}
    write_pieces(tmp_path, name, **settings)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ours = find_tokenizer(tmp_path, 1000)
    assert ours.size == len(theirs)
    for text in PIECE_TEXTS:
        assert ours.encode(text, marks=True).tolist() == theirs(text)["input_ids"], text
        pair = ours.spans(text, "other", marks=True).tokens.tolist()
        assert pair == theirs(text, "other")["input_ids"], text
