"""Tokenizers of directories without a tokenizer.json, by the class that they name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from launch.errors import DataError
from launch.pieces import CLASSES, PAIR, PIECE_FILES, read_pieces
from launch.words import (
    BYTE_PAIRS,
    LIST_FILE,
    MERGES_FILE,
    VOCABULARY_FILE,
    WORD_LISTS,
    read_object,
)

SETTINGS_FILE, ADDED_FILE = "tokenizer_config.json", "added_tokens.json"
MARKS_FILE = "special_tokens_map.json"
FILES = (VOCABULARY_FILE, MERGES_FILE, LIST_FILE, *PIECE_FILES)
"""Files that hold a vocabulary, each of some classes."""

_ALIKE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "ConvBertTokenizer",
            "DistilBertTokenizer",
            "ElectraTokenizer",
            "MobileBertTokenizer",
        ),
        "BertTokenizer",
    ),
    **dict.fromkeys(("BartTokenizer", "LongformerTokenizer"), "RobertaTokenizer"),
    "CodeGenTokenizer": "GPT2Tokenizer",
    "MT5Tokenizer": "T5Tokenizer",
}
"""Class -> another that cuts texts in the same way."""

_CLASSES: Mapping[str, str] = {
    **dict.fromkeys(("bert", "convbert", "distilbert", "electra", "mobilebert"), "BertTokenizer"),
    **dict.fromkeys(("clip", "clip_text_model"), "CLIPTokenizer"),
    **dict.fromkeys(("gpt2", "granite", "phi"), "GPT2Tokenizer"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3"), "LlamaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("bart", "roberta"), "RobertaTokenizer"),
    **dict.fromkeys(("mt5", "t5"), "T5Tokenizer"),
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "esm": "EsmTokenizer",
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "GemmaTokenizer"),
    "marian": PAIR,
    "mpnet": "MPNetTokenizer",
    "whisper": "WhisperTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""Model type -> the class of its tokenizer, for directories that do not name it."""


def read_vocabulary(directory: Path, otherwise: str | None = None) -> tokenizers.Tokenizer | None:
    """The tokenizer from a directory's vocabulary and merges, from its list of pieces, or from its
    SentencePiece file; None if it has no tokenizer at all. `otherwise` is the class where the
    directory names none.

    Raises DataError if the files are of another kind or cannot be used.
    """
    there = [name for name in FILES if (directory / name).is_file()]
    if not there:
        return None
    settings = read_object(directory / MARKS_FILE) | read_object(directory / SETTINGS_FILE)
    name = _class_of(directory, settings, otherwise)
    try:
        tokenizer = _make_tokenizer(directory, there, name, settings)
        if tokenizer is not None:
            _add_tokens(tokenizer, settings, read_object(directory / ADDED_FILE))
    except DataError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"the tokenizer of {directory} cannot be used: {error}") from error
    if tokenizer is None:
        raise DataError(
            f"{directory} holds the tokenizer files {', '.join(there)} ({name}), but no "
            f"tokenizer.json. {VOCABULARY_FILE} with {MERGES_FILE} is supported for "
            f"{', '.join(BYTE_PAIRS)}, {LIST_FILE} for {', '.join(WORD_LISTS)}, and SentencePiece "
            f"files for {', '.join((*CLASSES, PAIR))}. For others, write tokenizer.json with "
            "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
        )
    return tokenizer


def _class_of(directory: Path, settings: Mapping[str, Any], otherwise: str | None) -> str:
    model_type = str(read_object(directory / "config.json").get("model_type"))
    named = settings.get("tokenizer_class") or _CLASSES.get(model_type) or otherwise
    name = str(named).removesuffix("Fast")
    return _ALIKE.get(name, name)


def _make_tokenizer(
    directory: Path, there: Sequence[str], name: str, settings: Mapping[str, Any]
) -> tokenizers.Tokenizer | None:
    """The tokenizer of a class; None if the files that are there are of others."""
    pieces = [directory / file for file in there if file in PIECE_FILES]
    if pieces and name in (*CLASSES, PAIR):
        return read_pieces(pieces[0], name, settings)
    if {VOCABULARY_FILE, MERGES_FILE} <= set(there) and name in BYTE_PAIRS:
        return BYTE_PAIRS[name](directory, settings)
    if LIST_FILE in there and name in WORD_LISTS:
        return WORD_LISTS[name](directory, settings)
    return None


def _add_tokens(
    tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any], added: Mapping[str, int]
) -> None:
    """The tokens of tokenizer_config.json and added_tokens.json, in the order of their numbers.

    Raises ValueError if a number is not the next one.
    """
    decoder = settings.get("added_tokens_decoder", {})
    numbered: dict[int, AddedToken] = {
        number: AddedToken(text, special=True) for text, number in added.items()
    }
    for number, values in decoder.items():
        flags = {key: value for key, value in values.items() if key not in ("content", "__type")}
        numbered[int(number)] = AddedToken(values["content"], **flags)
    for number, token in sorted(numbered.items()):
        special = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        special([token])
        if tokenizer.token_to_id(token.content) != number:
            raise ValueError(f"the token {token.content!r} cannot have the ID {number}")
