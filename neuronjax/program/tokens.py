"""The tokens of program text, and a cursor over them that locates errors."""

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
"""Most levels of nested blocks and tuples: more than programs have, fewer than Python's stack."""
_MOST_DIGITS = 30


class Token(NamedTuple):
    """A word of the text, with its kind and position."""

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
    def current(self) -> Token:
        """The next token."""
        return self._tokens[self._position]

    @property
    def lookahead(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def looks_like(self, *pattern: str) -> bool:
        """Whether the next tokens have these kinds or texts."""
        tokens = self._tokens[self._position : self._position + len(pattern)]
        pairs = zip(tokens, pattern, strict=False)
        return len(tokens) == len(pattern) and all(
            want in (token.kind, token.text) for token, want in pairs
        )

    def sees(self, *texts: str) -> bool:
        """Whether the next token is one of these words or marks."""
        return self.current.kind in ("word", "mark") and self.current.text in texts

    def take(self) -> Token:
        """Consumes the next token and returns it."""
        token = self.current
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Consumes the word or mark if it comes next, and returns whether it did."""
        return self.sees(text) and bool(self.take())

    def expect(self, text: str) -> None:
        """Consumes the word or mark. ProgramSyntaxError: something else comes next."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {quoted(self.current.text)}")

    def of_kind(self, kind: str, what: str) -> str:
        """Consumes a token of a kind. ProgramSyntaxError: something else comes next."""
        if self.current.kind != kind:
            self.fail(f"expected {what}, found {quoted(self.current.text)}")
        return self.take().text

    def word(self, what: str = "a name") -> str:
        return self.of_kind("word", what)

    def string(self) -> str:
        start = self.current
        try:
            value: str = json.loads(self.of_kind("string", "a string"))
        except json.JSONDecodeError as error:
            self.fail(f"the string cannot be read: {error.msg}", start)
        return value

    def integer(self) -> int:
        """An integer with an optional minus."""
        sign = -1 if self.accept("-") else 1
        if self.current.kind != "int":
            self.fail(f"expected an integer, found {quoted(self.current.text)}")
        return sign * self.number(self.take())

    def number(self, token: Token) -> int:
        """The value of a token of digits. ProgramSyntaxError: it has too many digits."""
        if len(token.text) > _MOST_DIGITS:
            self.fail(f"the number has more than {_MOST_DIGITS} digits", token)
        return int(token.text)

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        """Raises ``ProgramSyntaxError`` at a token's line and column; by default the next one's."""
        start = (token or self.current).start
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        raise ProgramSyntaxError(f"line {line}, column {column}: {reason}.")
