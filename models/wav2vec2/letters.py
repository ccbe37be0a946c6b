"""Text from the letter of every frame: Graves et al., "Connectionist Temporal Classification",
2006, as the files of a Wav2Vec2CTCTokenizer say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from models.errors import ConfigError, InputError
from models.weights.fields import Fields, read_fields

VOCABULARY_FILE = "vocab.json"
TOKENIZER_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Letters:
    """What the tokens of frames stand for."""

    texts: Mapping[int, str]  # of tokens
    unknown: str = "<unk>"  # what other tokens stand for
    blank: str = "<pad>"  # no letter; it stands between two of a kind
    between_words: str = "|"
    space: str = " "  # what stands between words in a text
    lower_case: bool = False

    def text(self, tokens: Sequence[int]) -> str:
        """The text of the likeliest token of each frame."""
        frames = [self.texts.get(token, self.unknown) for token in tokens]
        letters = [letter for letter, _ in groupby(frames) if letter != self.blank]
        spelled = [self.space if letter == self.between_words else letter for letter in letters]
        text = "".join(spelled).strip()
        return text.lower() if self.lower_case else text

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The token of each letter and mark."""
        return {text: number for number, text in self.texts.items()}

    @property
    def blank_number(self) -> int:
        """The token of no letter. Raises ConfigError if there is none."""
        if self.blank not in self.numbers:
            raise ConfigError(
                f"{VOCABULARY_FILE} has no {self.blank!r}, which frames without a letter stand "
                f"for. Name the right one as `pad_token` in {TOKENIZER_FILE}."
            )
        return self.numbers[self.blank]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises InputError for letters without a token if the unknown has
        none either."""
        text = text.upper() if self.lower_case else text
        numbers = self.numbers
        letters = [self.between_words if letter == self.space else letter for letter in text]
        unknown = sorted({letter for letter in letters if letter not in numbers})
        if unknown and self.unknown not in numbers:
            raise InputError(
                f"{VOCABULARY_FILE} has no token for {', '.join(map(repr, unknown))}, nor for "
                f"{self.unknown!r}"
            )
        return [numbers[letter if letter in numbers else self.unknown] for letter in letters]


def read_letters(directory: Path) -> Letters:
    """The letters of a checkpoint's directory.

    Raises ConfigError if vocab.json or tokenizer_config.json cannot be used.
    """
    fields = _tokenizer(directory)
    vocabulary = read_fields(directory / VOCABULARY_FILE)
    language = read_language(directory)
    if language is not None:
        vocabulary = vocabulary.object(language)
    return Letters(
        texts=_texts(vocabulary),
        unknown=_token(fields, "unk_token", Letters.unknown),
        blank=_token(fields, "pad_token", Letters.blank),
        between_words=_token(fields, "word_delimiter_token", Letters.between_words),
        space=fields.text("replace_word_delimiter_char", Letters.space),
        lower_case=fields.flag("do_lower_case", False),
    )


def read_language(directory: Path) -> str | None:
    """The language that a tokenizer for several spells."""
    return _tokenizer(directory).text("target_lang", None)


def _tokenizer(directory: Path) -> Fields:
    file = directory / TOKENIZER_FILE
    return read_fields(file) if file.is_file() else Fields({}, str(file))


def _texts(vocabulary: Fields) -> dict[int, str]:
    texts = {number: text for text, number in vocabulary.values.items() if type(number) is int}
    if len(texts) != len(vocabulary.values):
        raise ConfigError(
            f"{vocabulary.where} must give every character its own ID, but it holds "
            f"{json.dumps(vocabulary.values)[:80]}. If it covers several languages, set "
            f"`target_lang` in {TOKENIZER_FILE}."
        )
    return texts


def _token(fields: Fields, name: str, default: str) -> str:
    """A token that is written as a text, or as an object with its `content`."""
    value: Any = fields.values.get(name)
    return (
        fields.object(name).text("content")
        if isinstance(value, dict)
        else fields.text(name, default)
    )
