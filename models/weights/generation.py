"""How a checkpoint says that text is made: generation_config.json, else config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.beam_search import Beams
from models.constraints import Constraints, Ending
from models.sampling import Sampling
from models.settings import FINITE, TOKENS, Range
from models.weights.fields import GENERATION_FILE, Fields, read_fields

NEUTRAL: Mapping[str, Any] = {
    "constraints": [],
    "diversity_penalty": 0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": [],
    "guidance_scale": 1,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "sequence_bias": {},
    "watermarking_config": None,
}
"""Fields that would choose other tokens -> the value that chooses none; others are refused."""
NEUTRAL_DRAWS: Mapping[str, Any] = {
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": 1,
    "typical_p": 1,
}
"""Neutral values of the fields that count only where tokens are drawn."""


_IDS = Range(-(2**31), 2**31 - 1)  # of tokens, which are int32
TOP_K = 50
"""The reference's `top_k` of files that draw without naming one."""


class Generation(NamedTuple):
    """How text is made: arguments of `models.generate.generate`."""

    sampling: Sampling
    max_new_tokens: int
    ending: Ending = Ending()
    constraints: Constraints = Constraints()
    beams: Beams | None = None
    sequences: int = 1


class GenerationFields(NamedTuple):
    """What the files of a checkpoint say."""

    ending: Ending
    values: Mapping[str, Any]  # by the names of generation_config.json
    where: str

    def resolve(
        self, given: Mapping[str, Any], otherwise: Generation, *, start: int = 0
    ) -> Generation:
        """What is given, by the same names, wins; then the files; then sampling and max_new_tokens
        of `otherwise`. Lengths that the files give count `start` tokens that every text begins
        with: one in encoder-decoders, whose first new token may be forced.

        Raises ConfigError or GenerationError for values that cannot be.
        """
        fields = Fields({**self.values, **given}, self.where)
        neutral = {**NEUTRAL, **(NEUTRAL_DRAWS if fields.flag("do_sample", False) else {})}
        for name, value in neutral.items():
            fields.refuse(name, value, why="this is not supported; remove it from the file")
        count = _count(fields, "num_beams", 1)
        beams = None
        if count > 1:
            penalty = _finite(fields, "length_penalty", 1.0)
            beams = Beams(count, penalty, fields.values.get("early_stopping") or False)
        first = next(iter(_tokens(fields, "forced_bos_token_id")), None)
        shortest = max(fields.integer("min_length", 0) - start, 0) if start else 0
        longest = fields.positive("max_length", None) if start else None
        room = otherwise.max_new_tokens if longest is None else max(longest - start, 1)
        return Generation(
            _sampling(fields, given, otherwise.sampling, beams is not None),
            _count(fields, "max_new_tokens", room),
            self.ending,
            Constraints(
                repetition_penalty=fields.positive_number("repetition_penalty", 1.0),
                no_repeat_ngram=fields.integer("no_repeat_ngram_size", 0),
                min_new_tokens=fields.integer("min_new_tokens", shortest),
                forced_first=first if start else None,
                forced_last=_tokens(fields, "forced_eos_token_id"),
                suppressed=(*_tokens(fields, "suppress_tokens"), *_bad_words(fields)),
                first_suppressed=_tokens(fields, "begin_suppress_tokens"),
                presence_penalty=_finite(fields, "presence_penalty", 0.0),
                frequency_penalty=_finite(fields, "frequency_penalty", 0.0),
            ),
            beams,
            _count(fields, "num_return_sequences", 1),
        )

    def stop_strings(self, given: Mapping[str, Any]) -> Sequence[str]:
        """Texts that end what is made, and are no part of it. Raises ConfigError for others."""
        fields = Fields({**self.values, **given}, self.where)
        value = fields.values.get("stop_strings") or []
        texts: list[str] = [value] if isinstance(value, str) else value
        if not all(isinstance(text, str) and text for text in texts):
            raise fields.fail(
                "stop_strings", "it must be a string or a list of strings, none of them empty"
            )
        return texts


def read_generation(directory: Path, fields: Fields) -> GenerationFields:
    """The fields of generation of a directory whose config.json has these fields.

    Rows end with `eos_token_id` of either file, and are filled with the first one if no padding is
    named. Raises ConfigError if the file is not a JSON object or has no token numbers there.
    """
    file = directory / GENERATION_FILE
    places = [read_fields(file), fields] if file.is_file() else [fields]
    stops = next((place for place in places if "eos_token_id" in place), None)
    pads = next((place for place in places if "pad_token_id" in place), None)
    stop_tokens = () if stops is None else _tokens(stops, "eos_token_id")
    fill = next(iter(stop_tokens), 0)
    pad_tokens = () if pads is None else _tokens(pads, "pad_token_id")
    ending = Ending(stop_tokens, next(iter(pad_tokens), fill))
    return GenerationFields(ending, places[0].values, places[0].where)


def _sampling(
    fields: Fields, given: Mapping[str, Any], otherwise: Sampling, has_beams: bool
) -> Sampling:
    """Files without `do_sample` leave the draws to the program; beams draw if they are told to."""
    draws = fields.flag("do_sample", False)
    source = fields if draws else Fields(given, fields.where)
    temperature = 0.0 if has_beams else otherwise.temperature
    if "temperature" in given or draws:
        temperature = source.number("temperature", 1.0)
    return Sampling(
        temperature,
        source.integer("top_k", TOP_K if draws else otherwise.top_k),
        source.number("top_p", otherwise.top_p),
        source.number("min_p", otherwise.min_p),
    )


def _tokens(fields: Fields, name: str) -> tuple[int, ...]:
    """The token IDs of a field, one or a list; numbers below zero, which some files give, are
    none."""
    value = fields.values.get(name)
    if value is None:
        return ()
    numbers = value if isinstance(value, list) else [value]
    if not all(type(number) is int and number in _IDS for number in numbers):
        raise fields.fail(name, "it must be a token ID or a list of token IDs")
    return tuple(number for number in numbers if number >= 0)


def _bad_words(fields: Fields) -> Sequence[int]:
    """The tokens of `bad_words_ids`. Raises ConfigError if a word has several."""
    words = fields.list("bad_words_ids", [])
    if not all(isinstance(word, list) and len(word) == 1 for word in words):
        raise fields.fail("bad_words_ids", "this is not supported for words of several tokens")
    return _tokens(
        Fields({"bad_words_ids": [word[0] for word in words]}, fields.where), "bad_words_ids"
    )


def _count(fields: Fields, name: str, default: int) -> int:
    count = fields.positive(name, default)
    if count not in TOKENS:
        raise fields.fail(name, f"it must be {TOKENS}")
    return count


def _finite(fields: Fields, name: str, default: float) -> float:
    number = fields.number(name, default)
    if number not in FINITE:
        raise fields.fail(name, f"it must be {FINITE}")
    return number
