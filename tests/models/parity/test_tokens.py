"""Texts of image models as tokens, against transformers."""

import json
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from launch.prompt_text import open_clip_text
from launch.text import Tokenizer, find_tokenizer
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


MIXED = [
    "A cat's  12 cats",
    " größer ≠ kleiner",
    "",
    "\n\n zebra\tcat <s> <|endoftext|> </s>",
    "e\u0301 ＦＵＬＬ width, ﬁne 12,345",
    "東京タワー 漢字かな 안녕하세요 नमस्ते สวัสดี",
    "привет, мир! مرحبا שלום",
    "the [MASK] and the <mask>, [CLS] [SEP]",
    "🙂 zero\u200bwidth\u00a0space \u0000control",
    "MKT<mask>LAYX  VG",
]
SCRIPTS = (
    "abcxyzäßéčłıαβγжщъאבגعربहिनदไทยあいカナ漢字中文한국어გეორ0123456789"
    ".,;:!?'\"-()[]<>&%$€£@#*/\\🙂👩\u200d🔬ﬁ½①"
)


def mixed_lines(count: int = 2000) -> list[str]:
    """Lines of words of one script or of several, with odd spaces between them."""
    rng = random.Random(0)
    lines = []
    for _ in range(count):
        begin = rng.randrange(len(SCRIPTS) - 8)
        alphabet = rng.choice([SCRIPTS, SCRIPTS[begin : begin + 8], "the cat sat on mat "])
        words = (
            "".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 12))
        )
        lines.append("".join(word + rng.choice((" ", " ", "  ", "\t", "")) for word in words))
    return lines


def check_lines(ours: Tokenizer, theirs: Any, lines: Sequence[str] = ()) -> None:
    """The same tokens for these lines, or for those of mixed scripts."""
    lines = lines or mixed_lines()
    got = ours.encode_all(lines, marks=True)
    for line, tokens, expected in zip(lines, got, theirs(lines)["input_ids"], strict=True):
        assert tokens.tolist() == expected, line


LETTERS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <mask>"


def byte_pairs(directory: Path, *marks: str) -> None:
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(MIXED * 3, 500, special_tokens=list(marks))
    trained.save_model(str(directory))


def clip_pairs(directory: Path) -> None:
    write_words(directory)


def word_pieces(directory: Path, *marks: str) -> None:
    trained = tokenizers.BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator(MIXED * 3, 400, min_frequency=1, special_tokens=list(marks))
    trained.save_model(str(directory))


def letters(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(LETTERS.split()))


def spoken_pairs(directory: Path) -> None:
    byte_pairs(directory, "<|endoftext|>")
    size = len(json.loads((directory / "vocab.json").read_text()))
    names = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    added = {name: size + number for number, name in enumerate(names)}
    (directory / "added_tokens.json").write_text(json.dumps(added))


BERT, ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>")
# Class -> what writes its files, and the special tokens that these have, the mask last.
FILES = {
    "GPT2Tokenizer": (byte_pairs, ("<|endoftext|>",)),
    "CodeGenTokenizer": (byte_pairs, ("<|endoftext|>",)),
    "RobertaTokenizer": (byte_pairs, (*ROBERTA, "<mask>")),
    "BartTokenizer": (byte_pairs, (*ROBERTA, "<mask>")),
    "DebertaTokenizer": (byte_pairs, BERT),
    "Qwen2Tokenizer": (byte_pairs, ("<|endoftext|>",)),
    "WhisperTokenizer": (spoken_pairs, ()),
    "CLIPTokenizer": (clip_pairs, ()),
    "BertTokenizer": (word_pieces, BERT),
    "DistilBertTokenizer": (word_pieces, BERT),
    "ElectraTokenizer": (word_pieces, BERT),
    "ConvBertTokenizer": (word_pieces, BERT),
    "MobileBertTokenizer": (word_pieces, BERT),
    "MPNetTokenizer": (word_pieces, ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
    "EsmTokenizer": (letters, ()),
}
MASKS = {"RobertaTokenizer": "<mask>", "BartTokenizer": "<mask>", "DebertaTokenizer": "[MASK]"}
CASED = {"do_lower_case": False}


@pytest.mark.parametrize("settings", [{}, CASED], ids=["plain", "cased"])
@pytest.mark.parametrize("name", FILES)
def test_vocabularies_are_read_as_transformers_does(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    write, marks = FILES[name]
    write(tmp_path, *marks)
    values = {"tokenizer_class": name, **settings}
    if name in MASKS:  # published files say what the classes of transformers 5 leave out
        values["mask_token"] = {"content": MASKS[name], "lstrip": True, "__type": "AddedToken"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = find_tokenizer(tmp_path, 1000)
    assert ours.size == len(theirs)
    check_lines(ours, theirs)
    for text in MIXED:
        assert ours.encode(text, marks=True).tolist() == theirs(text)["input_ids"], text
        pair = ours.spans(text, "other", marks=True)
        expected = theirs(text, "other")
        assert pair.tokens.tolist() == expected["input_ids"], text
        if "token_type_ids" in expected:
            assert pair.types.tolist() == expected["token_type_ids"], text


@pytest.mark.parametrize("name", KINDS)
def test_pieces_are_read_as_transformers_does(name: str, tmp_path: Path) -> None:
    settings = {"add_bos_token": True} if name in ("LlamaTokenizer", "GemmaTokenizer") else {}
    write_pieces(tmp_path, name, **settings)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ours = find_tokenizer(tmp_path, 1000)
    assert ours.size == len(theirs)
    check_lines(ours, theirs)
    for text in PIECE_TEXTS:
        assert ours.encode(text, marks=True).tolist() == theirs(text)["input_ids"], text
        pair = ours.spans(text, "other", marks=True).tokens.tolist()
        assert pair == theirs(text, "other")["input_ids"], text


def test_pieces_of_two_languages_are_read_as_transformers_does(tmp_path: Path) -> None:
    """Marian's pair: both cut a text into their own pieces, and vocab.json has those of both."""
    names = ["</s>", "<unk>", ">>de<<"]
    for side, size in (("source", 420), ("target", 300)):
        (tmp_path / side).mkdir()
        processor = write_pieces(tmp_path / side, "T5Tokenizer", vocab_size=size)
        (tmp_path / side / "spiece.model").rename(tmp_path / f"{side}.spm")
        pieces = map(processor.id_to_piece, range(3, processor.get_piece_size()))
        names += [piece for piece in pieces if piece not in names]
    vocabulary = {name: number for number, name in enumerate([*names, "<pad>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of what it does not use
        theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    ours = find_tokenizer(tmp_path, 1000)
    assert ours.size == len(theirs)
    # Runs of letters that no piece of a source has are unknown there, unless the whole run is a
    # piece of a target; here each such piece in them has its number.
    unknown = theirs.unk_token_id
    known = [line for line in mixed_lines() if unknown not in theirs(line)["input_ids"]]
    assert len(known) > 500
    check_lines(ours, theirs, known)
    for text in (*PIECE_TEXTS, ">>de<< The weights"):
        tokens = ours.encode(text, marks=True).tolist()
        assert tokens == theirs(text)["input_ids"], text
