"""SentencePiece models for tests, trained on a page of text."""

import json
from pathlib import Path
from typing import Any

import sentencepiece

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TEXTS = (
    "The weights of a run are read straight into the shardings.",
    "  two  spaces, a\ttab\nand a line ",
    "ＦＵＬＬ width, größer ≠ kleiner, ﬁne 12,345",
    "e\u0301 🙂 漢字",
    "",
    "`mesh` ''quoted'' </s> inside",
)
BYTE_PAIRS: dict[str, Any] = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
}
# Class -> its file, and how it was trained: the numbers of its marks follow from that.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaTokenizer": ("tokenizer.model", BYTE_PAIRS),
    "GemmaTokenizer": (
        "tokenizer.model",
        BYTE_PAIRS
        | {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
        | {"bos_piece": "<bos>", "eos_piece": "<eos>", "add_dummy_prefix": False}
        | {"user_defined_symbols": ["<mask>", "\n\n"]},
    ),
    "T5Tokenizer": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", {}),
    "CamembertTokenizer": ("sentencepiece.bpe.model", {}),
    "DebertaV2Tokenizer": (
        "spm.model",
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]"}
        | {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
    ),
    "AlbertTokenizer": (
        "spiece.model",
        {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "pad_piece": "<pad>"}
        | {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "control_symbols": ["[MASK]"]},
    ),
}


def write_pieces(
    directory: Path, name: str, **settings: Any
) -> sentencepiece.SentencePieceProcessor:
    """A directory with the pieces of a tokenizer of that class; and the library's own reader."""
    file, options = KINDS[name]
    options = {"model_type": "unigram", "vocab_size": 420, **options}
    sentencepiece.SentencePieceTrainer.train(
        input=str(PAGE),
        model_prefix=str(directory / "trained"),
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    (directory / "trained.model").rename(directory / file)
    (directory / "trained.vocab").unlink()
    values = {"tokenizer_class": name, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(values))
    return sentencepiece.SentencePieceProcessor(model_file=str(directory / file))
