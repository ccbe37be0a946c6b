"""Tokenizers of SentencePiece models, the files `tokenizer.model` and `spiece.model`.

Kudo and Richardson, "SentencePiece", 2018. A file holds pieces of text with their scores, and how a
text is normalised; what marks a text gets is in the code of the tokenizer's class.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from tokenizers.processors import TemplateProcessing

from launch.data.extras import library
from launch.words import VOCABULARY_FILE, Settings, read_object, token_of

PIECE_FILES = (
    *("tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model"),
    *("source.spm", "target.spm"),
)

Pieces = Sequence[tuple[str, float]]  # each with its score, by number
_SPACE = "▁"
_CONTROL, _USER_DEFINED = 3, 4  # ModelProto.SentencePiece.Type


def read_pieces(file: Path, name: str, settings: Settings) -> tokenizers.Tokenizer:
    """The tokenizer of a class, one of CLASSES, whose pieces are in that file.

    Raises DataError without the library, and whatever the libraries raise for a file that is none.
    """
    proto = library(
        "sentencepiece.sentencepiece_model_pb2", "sentencepiece", f"The tokenizer {file.name}"
    )
    model = proto.ModelProto()
    model.ParseFromString(file.read_bytes())
    if not model.pieces:
        raise ValueError(f"{file.name} holds no pieces")
    if name == PAIR:
        return _marian(model, settings, read_object(file.parent / VOCABULARY_FILE))
    return CLASSES[name](model, settings)


def _llama(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    scheme = "never"
    if settings.get("add_prefix_space", True) is not False:
        scheme = "always" if settings.get("legacy", False) else "first"
    tokenizer = _pairs(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme=scheme, split=False)
    tokenizer.decoder = _bytes_decoder(strip=scheme != "never")
    begin, end = (
        token_of(settings, "bos_token", "<s>"),
        token_of(settings, "eos_token", "</s>"),
    )
    return _with_marks(tokenizer, model, _decoder_marks(settings, begin, end))


def _gemma(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    tokenizer = _pairs(model, unknown=token_of(settings, "unk_token", "<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = _bytes_decoder(strip=False)
    begin, end = (
        token_of(settings, "bos_token", "<bos>"),
        token_of(settings, "eos_token", "<eos>"),
    )
    return _with_marks(tokenizer, model, _decoder_marks(settings, begin, end))


def _t5(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    sentinels = [f"<extra_id_{i}>" for i in range(settings.get("extra_ids", 100))]
    pieces = [*_read_scores(model), *((name, 0.0) for name in reversed(sentinels))]
    tokenizer = _unigram(model, pieces, token_of(settings, "unk_token", "<unk>"))
    end = token_of(settings, "eos_token", "</s>")
    pad = token_of(settings, "pad_token", "<pad>")
    return _with_marks(tokenizer, model, _Marks([], [end], [end]), (*sentinels, pad))


def _xlm_roberta(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    """The tokenizer of XLM-RoBERTa. Fairseq numbers its pieces behind four marks of its own, which
    replace the three of the file."""
    return _fairseq(model, settings, ["<s>", "<pad>", "</s>", "<unk>"], spared=3)


def _camembert(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    """The tokenizer of CamemBERT, which is that of XLM-RoBERTa with other names for the marks that
    its file lists as pieces too: names that no text contains."""
    firsts = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    return _fairseq(model, settings, firsts, spared=1)


def _fairseq(
    model: Any, settings: Settings, firsts: Sequence[str], spared: int
) -> tokenizers.Tokenizer:
    pieces = [(name, -100.0 if name == "<unk>NOTUSED" else 0.0) for name in firsts]
    pieces += [*_read_scores(model)[spared:], ("<mask>", 0.0)]
    tokenizer = _unigram(model, pieces, "<unk>")
    begin, end = (
        token_of(settings, "bos_token", "<s>"),
        token_of(settings, "eos_token", "</s>"),
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    others = [name for name in firsts if name not in (begin, end)]
    return _with_marks(tokenizer, model, _Marks([begin], [end], [end, end]), others)


def _albert(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    begin, end = (
        token_of(settings, "cls_token", "[CLS]"),
        token_of(settings, "sep_token", "[SEP]"),
    )
    first: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        first += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        first.append(normalizers.Lowercase())
    unknown = token_of(settings, "unk_token", "<unk>")
    tokenizer = _unigram(model, _read_scores(model), unknown, first)
    mask = AddedToken(token_of(settings, "mask_token", "[MASK]"), lstrip=True, normalized=False)
    tokenizer.add_special_tokens([mask])
    marks = _Marks([begin], [end], [end], second_type=1)
    return _with_marks(tokenizer, model, marks, [token_of(settings, "pad_token", "<pad>")])


def _deberta_v2(model: Any, settings: Settings) -> tokenizers.Tokenizer:
    begin, end = (
        token_of(settings, "cls_token", "[CLS]"),
        token_of(settings, "sep_token", "[SEP]"),
    )
    unknown = token_of(settings, "unk_token", "[UNK]")
    tokenizer = _unigram(model, _read_scores(model), unknown)
    steps = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    tokenizer.normalizer = normalizers.Sequence(
        [
            *steps,
            normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
            normalizers.NFC(),
            normalizers.Strip(left=False, right=True),
        ]
    )
    cuts = [pre_tokenizers.Punctuation("isolated")] if settings.get("split_by_punct") else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always")]
    )
    pad, mask = (
        token_of(settings, "pad_token", "[PAD]"),
        token_of(settings, "mask_token", "[MASK]"),
    )
    tokenizer.add_special_tokens([AddedToken(mask, normalized=False)])
    return _with_marks(tokenizer, model, _Marks([begin], [end], [end], second_type=1), [pad])


def _marian(model: Any, settings: Settings, vocabulary: Mapping[str, int]) -> tokenizers.Tokenizer:
    """The pieces of sources, with the numbers that vocab.json gives them and those of targets."""
    if settings.get("separate_vocabs", False):
        raise ValueError("source and target must have a common vocabulary")
    scores = dict(_read_scores(model))
    pieces = [(name, scores.get(name, _OF_TARGETS)) for name, _ in _by_number(vocabulary)]
    tokenizer = _unigram(model, pieces, token_of(settings, "unk_token", "<unk>"))
    # A code of the language to translate to stands in front of a text.
    codes = [name for name in vocabulary if name.startswith(">>") and name.endswith("<<")]
    tokenizer.add_special_tokens([AddedToken(code, normalized=False) for code in codes])
    end = token_of(settings, "eos_token", "</s>")
    pad = token_of(settings, "pad_token", "<pad>")
    return _with_marks(tokenizer, model, _Marks([], [end], []), [pad])


def _by_number(vocabulary: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    ordered = sorted(vocabulary.items(), key=lambda item: item[1])
    if [number for _, number in ordered] != list(range(len(ordered))):
        raise ValueError(f"{VOCABULARY_FILE} does not number its pieces from 0 on")
    return ordered


_OF_TARGETS = -1e6  # score of pieces that sources have no use for
PAIR = "MarianTokenizer"
"""The class with pieces of its own for sources and for targets."""

Make = Callable[[Any, Settings], tokenizers.Tokenizer]
CLASSES: Mapping[str, Make] = {
    "LlamaTokenizer": _llama,
    "GemmaTokenizer": _gemma,
    "T5Tokenizer": _t5,
    "XLMRobertaTokenizer": _xlm_roberta,
    "CamembertTokenizer": _camembert,
    "AlbertTokenizer": _albert,
    "DebertaV2Tokenizer": _deberta_v2,
}
"""Name of a tokenizer's class -> makes it of a ModelProto."""


def _read_scores(model: Any) -> list[tuple[str, float]]:
    return [(piece.piece, piece.score) for piece in model.pieces]


def _pairs(model: Any, unknown: str | None = None) -> tokenizers.Tokenizer:
    """Byte pairs with bytes for unknown letters. The file holds no merges: two pieces are merged if
    they make one, and those that make the first one first."""
    numbers = {piece: number for number, (piece, _) in enumerate(_read_scores(model))}
    merges = [
        (numbers[piece], len(piece[:cut]), (piece[:cut], piece[cut:]))
        for piece in numbers
        for cut in range(1, len(piece))
        if piece[:cut] in numbers and piece[cut:] in numbers
    ]
    ordered = [pair for *_, pair in sorted(merges)]
    return tokenizers.Tokenizer(
        BPE(numbers, ordered, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )


def _bytes_decoder(*, strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def _unigram(
    model: Any, pieces: Pieces, unknown: str, before: Sequence[normalizers.Normalizer] = ()
) -> tokenizers.Tokenizer:
    """The likeliest pieces of every word (Kudo, "Subword Regularization", 2018)."""
    number = [piece for piece, _ in pieces].index(unknown)
    tokenizer = tokenizers.Tokenizer(Unigram(list(pieces), number, byte_fallback=False))
    charsmap = model.normalizer_spec.precompiled_charsmap
    steps = [*before, *([normalizers.Precompiled(charsmap)] if charsmap else [])]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(unknown, normalized=False)])
    return tokenizer


class _Marks(NamedTuple):
    """The marks that stand around a text, and between it and a second one."""

    begin: Sequence[str]
    end: Sequence[str]
    between: Sequence[str]
    second_type: int = 0  # of the second text's tokens


def _decoder_marks(settings: Settings, begin: str, end: str) -> _Marks:
    """The marks that tokenizer_config.json asks for; a mark at the beginning if it says nothing."""
    begins = [begin] if settings.get("add_bos_token", True) else []
    ends = [end] if settings.get("add_eos_token", False) else []
    return _Marks(begins, ends, [*ends, *begins], second_type=1)


def _with_marks(
    tokenizer: tokenizers.Tokenizer, model: Any, marks: _Marks, others: Iterable[str] = ()
) -> tokenizers.Tokenizer:
    """The tokenizer with these marks, which no text is cut into, nor the other ones."""
    for piece in model.pieces:
        if (
            piece.type in (_CONTROL, _USER_DEFINED)
            and tokenizer.token_to_id(piece.piece) is not None
        ):
            is_special = piece.type == _CONTROL
            add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
            add([AddedToken(piece.piece, normalized=False, special=is_special)])
    around = {*marks.begin, *marks.end, *marks.between}
    known = [name for name in (*others, *sorted(around)) if tokenizer.token_to_id(name) is not None]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in known])
    second = marks.second_type
    ends = [f"{mark}:{second}" for mark in marks.end]
    tokenizer.post_processor = TemplateProcessing(
        single=[*marks.begin, "$A", *marks.end],
        pair=[*marks.begin, "$A", *marks.between, f"$B:{second}", *ends],
        special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in sorted(around)],
    )
    return tokenizer
