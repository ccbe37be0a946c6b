"""Answers that must have a form: JSON schemas, regular expressions and grammars, by llguidance."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, StructTag, TokenizerWrapper
from llguidance.numpy import fill_next_token_bitmask

from launch.serving.errors import RequestError
from launch.serving.requests import Grammar, Request
from launch.serving.sampling.token_masks import as_bits
from launch.text import read_tokenizer


class _Bytes:
    """A tokenizer with a token for each byte, as llguidance asks for one."""

    eos_token_id, bos_token_id, unk_token_id = 256, None, None

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(256)] + [b"<|end|>"]
        self.special_token_ids = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def json_grammar(schema: Mapping[str, Any], parameter: str) -> str:
    """The grammar of JSON that a schema allows. Raises RequestError, with the parameter to blame,
    if it cannot be compiled."""
    return _check_grammar(
        lambda: LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": False}
        ),
        "schema",
        parameter,
    )


def enclosed_json_grammar(
    forms: Sequence[tuple[str, Mapping[str, Any], str]], parameter: str
) -> str:
    """The grammar of one of these forms: (text before, schema, text after). References of a schema
    start at its own root. Raises as `json_grammar`."""
    rules = []
    for before, schema, after in forms:
        form = json.dumps(_compile(schema, parameter))
        rules.append(f"{_literal(before)} %json {form} {_literal(after)}")
    return lark_grammar(f"start: {' | '.join(rules)}", parameter)


def tagged_grammar(
    tags: Sequence[tuple[str, str, Mapping[str, Any], str]], *, special: bool, parameter: str
) -> str:
    """The grammar of free texts in which whatever begins with a trigger is one of these forms:
    (trigger, text before, schema, text after). `special`: triggers in angle brackets are special
    tokens. Raises as `json_grammar`."""
    made = [
        StructTag(trigger=trigger, begin=before, grammar=_compile(schema, parameter), end=after)
        for trigger, before, schema, after in tags
    ]
    return _check_grammar(
        lambda: StructTag.to_grammar(made, assume_special=special), "structure", parameter
    )


def _compile(schema: Mapping[str, Any], parameter: str) -> dict[str, Any]:
    """A schema with the options of its grammar, for one that it is a part of."""
    (compiled,) = json.loads(json_grammar(schema, parameter))["grammars"]
    inner: dict[str, Any] = compiled["json_schema"]
    return inner


def regex_grammar(pattern: str, parameter: str) -> str:
    """The grammar of texts that match a regular expression as a whole. Raises as `json_grammar`."""
    return _check_grammar(lambda: LLMatcher.grammar_from_regex(pattern), "expression", parameter)


def lark_grammar(rules: str, parameter: str) -> str:
    """The grammar of the texts of `start` in llguidance's dialect of Lark. Raises as
    `json_grammar`."""
    return _check_grammar(lambda: LLMatcher.grammar_from_lark(rules), "grammar", parameter)


def choice_grammar(choices: Sequence[str], parameter: str) -> str:
    """The grammar of one of these texts. Raises as `json_grammar`."""
    return lark_grammar(f"start: {' | '.join(map(_literal, choices))}", parameter)


def _literal(text: str) -> str:
    """The literal as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _check_grammar(make: Callable[[], str], what: str, parameter: str) -> str:
    try:
        grammar = make()
        reason = LLMatcher.validate_grammar(grammar)
    except ValueError as error:
        reason = str(error)
    if reason:
        raise RequestError(f"the {what} cannot be compiled: {_first(reason)}", parameter)
    return grammar


def _first(reason: str) -> str:
    """The first line of a compiler's message, and the error that it announces."""
    lines = [line.strip() for line in reason.strip().splitlines()]
    errors = (line.removeprefix("error: ") for line in lines if line.startswith("error: "))
    return f"{lines[0]} {next(errors, '')}".strip() if lines[0].endswith(":") else lines[0]


class Grammars:
    """Compiles grammars for one model."""

    def __init__(
        self, directory: Path | None, vocab_size: int, stop_tokens: Sequence[int] = ()
    ) -> None:
        self._vocab_size = vocab_size
        self._refusal = ""
        stored = None if directory is None else read_tokenizer(directory)
        if stored is None:
            self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()))
            return
        ends = list(stop_tokens) or None
        try:
            self._tokenizer = LLTokenizer(stored.to_str(), n_vocab=vocab_size, eos_token=ends)
        except ValueError as error:  # everything but grammars works with such a tokenizer
            self._refusal = str(error).strip().splitlines()[0]

    def of(self, request: Request) -> Grammar:
        """What the answer of a bounded request must keep to. Raises RequestError as `start`, and
        if no token is left to begin with."""
        grammar = None if request.form is None else self.start(request.form)
        bounded = _Bounded(request, grammar, self._vocab_size)
        if not bounded.mask().any():
            raise RequestError(
                "allowed_token_ids, bad_words and the form of the answer leave no token for it to "
                "begin with: leave one of them out",
                "bad_words" if request.banned else "allowed_token_ids",
            )
        return bounded

    def start(self, grammar: str) -> Grammar:
        """A grammar at the beginning of an answer. Raises RequestError for a text that is no
        grammar, or if the model's tokenizer is of a kind that llguidance does not know."""
        if self._refusal:
            raise RequestError(
                f"structured outputs are not possible with this model's tokenizer: {self._refusal}",
                "response_format",
            )
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        _check(matcher)
        started = _Matcher(matcher, self._tokenizer.vocab_size, self._vocab_size)
        if not started.mask().any():
            raise RequestError(
                "no text that the model can write has the form that is asked for",
                "response_format",
            )
        started.try_one()
        return started


def _check(matcher: LLMatcher) -> None:
    """Raises RequestError if a grammar is wrong, or beyond what can be computed."""
    if matcher.is_error():
        reason = matcher.get_error().strip().splitlines()[0]
        raise RequestError(f"the schema cannot be compiled: {reason}", "response_format")


class _Bounded:
    """The bounds of a request, beside which its answer may have a grammar."""

    def __init__(self, request: Request, grammar: Grammar | None, vocab_size: int) -> None:
        self._left, self._grammar, self._banned = request.min_tokens, grammar, request.banned
        self._answer: list[int] = []
        allowed = np.full(vocab_size, not request.allowed_tokens)
        allowed[list(request.allowed_tokens)] = True
        self._allowed = as_bits(allowed)
        allowed[[token for token in request.stop_tokens if token < vocab_size]] = False
        self._going_on = as_bits(allowed)

    def mask(self) -> np.ndarray:
        """uint32 [ceil(V / 32)]. A grammar that lets nothing follow but an end has its way."""
        mask: np.ndarray = self._allowed.copy()
        if self._grammar is not None:
            mask &= self._grammar.mask()
        for *before, last in self._banned:
            if not before or self._answer[-len(before) :] == before:
                mask[last // 32] &= ~np.uint32(1 << last % 32)
        going_on = mask & self._going_on
        return going_on if self._left and going_on.any() else mask

    def accept(self, token: int) -> bool:
        """Takes a token, as the grammar does; the answer is also complete if nothing may follow."""
        self._left = max(self._left - 1, 0)
        self._answer.append(token)
        goes_on = self._grammar is None or self._grammar.accept(token)
        return goes_on and bool(self.mask().any())


class _Matcher:
    """The state of one answer."""

    def __init__(self, matcher: LLMatcher, known: int, vocab_size: int) -> None:
        self._matcher = matcher
        self._buffer = np.zeros((1, -(-known // 32)), np.int32)
        self._words = -(-vocab_size // 32)
        self._vocab_size = vocab_size
        self._allowed = self._compute()

    def mask(self) -> np.ndarray:
        """The tokens that may follow, as bits uint32 [ceil(V / 32)]."""
        return self._allowed

    def try_one(self) -> None:
        """Computes one token further, which is where most grammars that are too large fail. Raises
        RequestError for those."""
        bits = np.unpackbits(self._allowed.view(np.uint8), bitorder="little")
        trial = self._matcher.deep_copy()
        trial.consume_token(int(bits.argmax()))
        _check(trial)

    def accept(self, token: int) -> bool:
        """False: the answer is complete, or no token of the model can go on with it. Raises
        RequestError if the rest is beyond what can be computed."""
        goes_on = self._matcher.consume_token(token) and not self._matcher.is_stopped()
        _check(self._matcher)
        if not goes_on:
            return False
        self._allowed = self._compute()
        return bool(self._allowed.any())

    def _compute(self) -> np.ndarray:
        fill_next_token_bitmask(self._matcher, self._buffer, 0)
        words = np.zeros(self._words, np.uint32)
        there = self._buffer[0, : self._words].view(np.uint32)
        words[: len(there)] = there
        if self._vocab_size % 32:
            words[-1] &= np.uint32((1 << self._vocab_size % 32) - 1)
        return words
