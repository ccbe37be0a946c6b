"""Tokenizers of SentencePiece models, against the library's own reader."""

import json
from pathlib import Path

import pytest

from launch.errors import DataError
from launch.text import find_tokenizer
from tests.launch.piece_files import TEXTS, write_pieces

# Class -> what is added to the library's numbers, and the marks around them.
EXPECTED = {
    "LlamaTokenizer": (0, [1], []),
    "GemmaTokenizer": (0, [2], []),
    "T5Tokenizer": (0, [], [1]),
    "XLMRobertaTokenizer": (1, [0], [2]),
}
# The library does not look for marks; and it puts a space before every text, transformers only
# before those without.
PLAIN = [text for text in TEXTS if "</s>" not in text and not text.startswith(" ")]


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_are_the_librarys(name: str, tmp_path: Path) -> None:
    shift, begin, end = EXPECTED[name]
    library = write_pieces(tmp_path, name)
    tokenizer = find_tokenizer(tmp_path, 1000)
    for text in PLAIN:
        numbers = library.encode(text)
        if shift:  # fairseq's own number of what is unknown
            numbers = [3 if n == library.unk_id() else n + shift for n in numbers]
        assert tokenizer.encode(text, marks=True).tolist() == begin + numbers + end, text
        assert tokenizer.encode(text, marks=False).tolist() == numbers, text


def test_decoded_pieces_are_the_text(tmp_path: Path) -> None:
    write_pieces(tmp_path, "LlamaTokenizer", add_eos_token=True)
    tokenizer = find_tokenizer(tmp_path, 1000)
    for text in PLAIN:
        stream = tokenizer.stream()
        assert stream.feed(tokenizer.encode(text, marks=True)) + stream.finish() == text


def test_the_model_type_tells_the_class(tmp_path: Path) -> None:
    library = write_pieces(tmp_path, "LlamaTokenizer")
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    got = find_tokenizer(tmp_path, 1000).encode(TEXTS[0], marks=True)
    assert got.tolist() == [1, *library.encode(TEXTS[0])]


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b'{"model": 1}'])
def test_files_without_pieces_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(DataError, match="cannot be used"):
        find_tokenizer(tmp_path, 1000)
