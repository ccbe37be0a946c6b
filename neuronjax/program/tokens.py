"""The words of program text, and a cursor over them that says where an error is."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from neuronjax.errors import ProgramSyntaxError, quoted

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<mark>\+=|>=|[%$!@#(){}\[\]<>:;,=*+-])
    |(?P<wrong>.)""",
    re.VERBOSE | re.DOTALL,
)

_OPEN, _CLOSED = frozenset("([{"), frozenset(")]}")
MOST_NESTED = 64
"""Blocks and tuples within each other: far more than programs have, less than Python's stack."""
_MOST_DIGITS = 30


class Token(NamedTuple):
    """A word of the text, what kind it is, and where it begins."""

    kind: str
    text: str
    start: int


class Cursor:
    """Reads tokens from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            Token(match.lastgroup or "", match[0], match.start())
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "space"
        ]
        self._tokens.append(Token("end", "the end of the text", len(text)))
        self._position = 0
        self._check_nesting()

    def _check_nesting(self) -> None:
        depth = 0
        for token in self._tokens:
            if token.kind == "mark":
                depth += (token.text in _OPEN) - (token.text in _CLOSED)
                if depth > MOST_NESTED:
                    self.fail(f"blocks are nested more than {MOST_NESTED} deep", token)

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._position]

    @property
    def ahead(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def looks_like(self, *pattern: str) -> bool:
        """Whether the next tokens are of these kinds, or these marks."""
        found = self._tokens[self._position : self._position + len(pattern)]
        pairs = zip(found, pattern, strict=False)
        return len(found) == len(pattern) and all(
            want in (token.kind, token.text) for token, want in pairs
        )

    def sees(self, *texts: str) -> bool:
        """Whether the next token is one of these words or marks."""
        return self.here.kind in ("word", "mark") and self.here.text in texts

    def take(self) -> Token:
        """The next token, which is passed."""
        token = self.here
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Passes the word or mark if it comes next."""
        return self.sees(text) and bool(self.take())

    def expect(self, text: str) -> None:
        """Passes the word or mark. ProgramSyntaxError: something else comes next."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {quoted(self.here.text)}")

    def of_kind(self, kind: str, what: str) -> str:
        """Passes a token of a kind. ProgramSyntaxError: something else comes next."""
        if self.here.kind != kind:
            self.fail(f"expected {what}, found {quoted(self.here.text)}")
        return self.take().text

    def word(self, what: str = "a name") -> str:
        return self.of_kind("word", what)

    def string(self) -> str:
        start = self.here
        try:
            value: str = json.loads(self.of_kind("string", "a string"))
        except json.JSONDecodeError as error:
            self.fail(f"the string cannot be read: {error.msg}", start)
        return value

    def integer(self) -> int:
        """An integer with an optional minus."""
        sign = -1 if self.accept("-") else 1
        if self.here.kind != "int":
            self.fail(f"expected an integer, found {quoted(self.here.text)}")
        return sign * self.number(self.take())

    def number(self, token: Token) -> int:
        """The value of a token of digits. ProgramSyntaxError: there are too many of them."""
        if len(token.text) > _MOST_DIGITS:
            self.fail(f"the number has more than {_MOST_DIGITS} digits", token)
        return int(token.text)

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        """Raises ``ProgramSyntaxError`` with the line and column of a token, else the next one."""
        start = (token or self.here).start
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        raise ProgramSyntaxError(f"line {line}, column {column}: {reason}.")
