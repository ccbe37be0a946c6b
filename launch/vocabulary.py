"""Tokenizers of directories without a tokenizer.json: `vocab.json` and `merges.txt`, or pieces.

The former hold byte-level pairs (Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019); how a text is cut into words before that is in the code of the tokenizer's class,
whose name tokenizer_config.json or the model type of config.json gives.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import RobertaProcessing

from launch.errors import DataError
from launch.pieces import CLASSES, PIECE_FILES, read_pieces

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
SETTINGS_FILE, ADDED_FILE = "tokenizer_config.json", "added_tokens.json"
OTHER_FILES = (*PIECE_FILES, "vocab.txt")
"""Files of other tokenizers, some of which only the reference library can read."""

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLASSES = {
    "gpt2": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer",
    **dict.fromkeys(("qwen2", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "phi3"), "LlamaTokenizer"),
    "gemma3_text": "GemmaTokenizer",
    "t5": "T5Tokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
}
"""Model type -> the class of its tokenizer, for directories that do not name it."""


def read_vocabulary(directory: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer from a directory's vocabulary and merges, or from its SentencePiece file; None
    if it has no tokenizer at all.

    Raises DataError if the files are of another kind or cannot be used.
    """
    is_there = [(directory / name).is_file() for name in (VOCABULARY_FILE, MERGES_FILE)]
    others = [name for name in OTHER_FILES if (directory / name).is_file()]
    if not any(is_there) and not others:
        return None
    settings = _object(directory / SETTINGS_FILE)
    name = str(
        settings.get("tokenizer_class")
        or _CLASSES.get(str(_object(directory / "config.json").get("model_type")))
    ).removesuffix("Fast")
    pieces = [directory / file for file in others if file in PIECE_FILES]
    by_pieces = bool(pieces) and name in CLASSES
    if not by_pieces and (not all(is_there) or name not in _FINISH):
        files = [
            f for f in (VOCABULARY_FILE, MERGES_FILE, *OTHER_FILES) if (directory / f).is_file()
        ]
        raise DataError(
            f"{directory} holds the tokenizer files {', '.join(files)} ({name}), but no "
            f"tokenizer.json. {VOCABULARY_FILE} with {MERGES_FILE} is supported for "
            f"{', '.join(_FINISH)}, and SentencePiece files for {', '.join(CLASSES)}. For others, "
            "write tokenizer.json with transformers: "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
        )
    try:
        if not by_pieces:
            return _tokenizer(directory, name, settings)
        tokenizer = read_pieces(pieces[0], name, settings)
        _add_tokens(tokenizer, settings, _object(directory / ADDED_FILE))
        return tokenizer
    except DataError:
        raise
    except Exception as error:  # the library raises nothing more precise
        raise DataError(f"the tokenizer of {directory} cannot be used: {error}") from error


def _tokenizer(directory: Path, name: str, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    vocabulary = _object(directory / VOCABULARY_FILE)
    lines = (directory / MERGES_FILE).read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, [(left, right) for left, right in pairs]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.get("add_prefix_space", False))
    )
    _FINISH[name](tokenizer, vocabulary)
    _add_tokens(tokenizer, settings, _object(directory / ADDED_FILE))
    return tokenizer


def _finish_gpt2(tokenizer: tokenizers.Tokenizer, vocabulary: Mapping[str, int]) -> None:
    tokenizer.add_special_tokens([name for name in ("<|endoftext|>",) if name in vocabulary])


def _finish_roberta(tokenizer: tokenizers.Tokenizer, vocabulary: Mapping[str, int]) -> None:
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = RobertaProcessing(
        ("</s>", vocabulary["</s>"]), ("<s>", vocabulary["<s>"]), add_prefix_space=False
    )


def _finish_qwen2(tokenizer: tokenizers.Tokenizer, vocabulary: Mapping[str, int]) -> None:
    _finish_gpt2(tokenizer, vocabulary)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_FINISH: Mapping[str, Callable[[tokenizers.Tokenizer, Mapping[str, int]], None]] = {
    "GPT2Tokenizer": _finish_gpt2,
    "RobertaTokenizer": _finish_roberta,
    "Qwen2Tokenizer": _finish_qwen2,
}


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


def _object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if there is none."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file} is not a JSON object")
    return values
