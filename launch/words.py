"""Tokenizers of vocabularies in plain files: byte-level pairs, word pieces, letters of proteins.

`vocab.json` and `merges.txt` hold pairs (Radford et al., "Language Models are Unsupervised
Multitask Learners", 2019), `vocab.txt` holds one piece a line (Schuster and Nakajima, "Japanese and
Korean Voice Search", 2012). How a text is cut into words before that, and what marks it gets, is in
the code of the tokenizer's class; so a row of BYTE_PAIRS or WORD_LISTS stands for a class.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from launch.errors import DataError

VOCABULARY_FILE, MERGES_FILE, LIST_FILE = "vocab.json", "merges.txt", "vocab.txt"

Settings = Mapping[str, Any]  # of tokenizer_config.json
Make = Callable[[Path, Settings], tokenizers.Tokenizer]

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if there is none. Raises DataError if it is no object."""
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file} is not a JSON object")
    return values


def token_of(settings: Settings, key: str, otherwise: str) -> str:
    """The text of a special token, such as "mask_token"."""
    value = settings.get(key) or otherwise
    return str(value["content"] if isinstance(value, Mapping) else value)


def _pairs(directory: Path, settings: Settings, **options: Any) -> tokenizers.Tokenizer:
    vocabulary = read_object(directory / VOCABULARY_FILE)
    lines = (directory / MERGES_FILE).read_text(encoding="utf-8").splitlines()
    pairs = [line.split() for line in lines if line and not line.startswith("#version")]
    merges = [(left, right) for left, right in pairs]
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, merges, **options))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=bool(settings.get("add_prefix_space", False))
    )
    return tokenizer


def _gpt2(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _pairs(directory, settings)
    _add_known(tokenizer, "<|endoftext|>")
    return tokenizer


def _whisper(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    """The marks of languages and tasks are in added_tokens.json."""
    tokenizer = _gpt2(directory, settings)
    added = read_object(directory / "added_tokens.json")
    for text, _ in sorted(added.items(), key=lambda item: int(item[1])):
        tokenizer.add_special_tokens([AddedToken(text, normalized=False)])
    begin = [
        name
        for name in ("<|startoftranscript|>", "<|notimestamps|>")
        if tokenizer.token_to_id(name) is not None
    ]
    _surround(tokenizer, begin, ["<|endoftext|>"], between=[])
    return tokenizer


def _qwen2(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _gpt2(directory, settings)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _roberta(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _pairs(directory, settings)
    _add_known(tokenizer, "<s>", "<pad>", "</s>", "<unk>")
    _add_mask(tokenizer, token_of(settings, "mask_token", "<mask>"))
    begin, end = (
        token_of(settings, "cls_token", "<s>"),
        token_of(settings, "sep_token", "</s>"),
    )
    tokenizer.post_processor = RobertaProcessing(
        _with_number(tokenizer, end), _with_number(tokenizer, begin), add_prefix_space=False
    )
    return tokenizer


def _deberta(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _pairs(directory, settings)
    begin, end = (
        token_of(settings, "cls_token", "[CLS]"),
        token_of(settings, "sep_token", "[SEP]"),
    )
    _add_known(tokenizer, begin, end, "[UNK]", "[PAD]")
    _add_mask(tokenizer, token_of(settings, "mask_token", "[MASK]"))
    _surround(tokenizer, [begin], [end], [end, end])
    return tokenizer


def _clip(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    begin = token_of(settings, "bos_token", "<|startoftext|>")
    end = token_of(settings, "eos_token", "<|endoftext|>")
    tokenizer = _pairs(directory, settings, end_of_word_suffix="</w>", unk_token=end)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    _add_known(tokenizer, begin, end)
    tokenizer.post_processor = RobertaProcessing(
        _with_number(tokenizer, end),
        _with_number(tokenizer, begin),
        add_prefix_space=False,
        trim_offsets=False,
    )
    return tokenizer


BYTE_PAIRS: Mapping[str, Make] = {
    "GPT2Tokenizer": _gpt2,
    "RobertaTokenizer": _roberta,
    "DebertaTokenizer": _deberta,
    "Qwen2Tokenizer": _qwen2,
    "WhisperTokenizer": _whisper,
    "CLIPTokenizer": _clip,
}
"""Name of a tokenizer's class -> makes it of `vocab.json` and `merges.txt`."""


def _read_list(directory: Path) -> dict[str, int]:
    lines = (directory / LIST_FILE).read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _word_pieces(directory: Path, settings: Settings, unknown: str) -> tokenizers.Tokenizer:
    lower = bool(settings.get("do_lower_case", True))
    tokenizer = tokenizers.Tokenizer(WordPiece(_read_list(directory), unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
        lowercase=lower,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _bert(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    begin, end = (
        token_of(settings, "cls_token", "[CLS]"),
        token_of(settings, "sep_token", "[SEP]"),
    )
    unknown, pad = (
        token_of(settings, "unk_token", "[UNK]"),
        token_of(settings, "pad_token", "[PAD]"),
    )
    tokenizer = _word_pieces(directory, settings, unknown)
    _add_known(tokenizer, begin, end, unknown, pad, token_of(settings, "mask_token", "[MASK]"))
    _surround(tokenizer, [begin], [end], second_type=1)
    return tokenizer


def _mpnet(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    begin, end = (
        token_of(settings, "cls_token", "<s>"),
        token_of(settings, "sep_token", "</s>"),
    )
    unknown, pad = (
        token_of(settings, "unk_token", "[UNK]"),
        token_of(settings, "pad_token", "<pad>"),
    )
    tokenizer = _word_pieces(directory, settings, unknown)
    _add_known(tokenizer, begin, end, unknown, pad)
    _add_mask(tokenizer, token_of(settings, "mask_token", "<mask>"))
    tokenizer.post_processor = RobertaProcessing(
        _with_number(tokenizer, end), _with_number(tokenizer, begin), add_prefix_space=False
    )
    return tokenizer


def _esm(directory: Path, settings: Settings) -> tokenizers.Tokenizer:
    """Every entry of the list is cut out of the text, whatever stands beside it."""
    vocabulary = {text.strip(): number for text, number in _read_list(directory).items()}
    begin, end = (
        token_of(settings, "cls_token", "<cls>"),
        token_of(settings, "eos_token", "<eos>"),
    )
    unknown = token_of(settings, "unk_token", "<unk>")
    tokenizer = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [begin, end, unknown, "<pad>", "<mask>"]
    _add_known(tokenizer, *marks)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in vocabulary if t not in marks])
    _surround(tokenizer, [begin], [end], [end])
    return tokenizer


WORD_LISTS: Mapping[str, Make] = {
    "BertTokenizer": _bert,
    "MPNetTokenizer": _mpnet,
    "EsmTokenizer": _esm,
}
"""Name of a tokenizer's class -> makes it of `vocab.txt`."""


def _add_known(tokenizer: tokenizers.Tokenizer, *names: str) -> None:
    """Makes marks of those names that the vocabulary has: no text is cut into them."""
    known = [name for name in names if tokenizer.token_to_id(name) is not None]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in known])


def _add_mask(tokenizer: tokenizers.Tokenizer, name: str) -> None:
    """The mask takes the space before it."""
    if tokenizer.token_to_id(name) is not None:
        tokenizer.add_special_tokens([AddedToken(name, lstrip=True, normalized=False)])


def _with_number(tokenizer: tokenizers.Tokenizer, name: str) -> tuple[str, int]:
    number = tokenizer.token_to_id(name)
    if number is None:
        raise ValueError(f"its vocabulary lacks the token {name!r}")
    return name, number


def _surround(
    tokenizer: tokenizers.Tokenizer,
    begin: list[str],
    end: list[str],
    between: list[str] | None = None,
    second_type: int = 0,
) -> None:
    """Marks around every text, and `between` it and a second one, else the end's."""
    between = end if between is None else between
    after = [f"{name}:{second_type}" for name in end]
    tokenizer.post_processor = TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *between, f"$B:{second_type}", *after],
        special_tokens=[_with_number(tokenizer, name) for name in sorted({*begin, *end, *between})],
    )
