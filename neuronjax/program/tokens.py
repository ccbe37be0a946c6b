"""The words of program text, and a cursor over them that says where an error is."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from neuronjax.errors import ProgramSyntaxError

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
            self.fail(f"expected {text!r}, found {self.here.text!r}")

    def of_kind(self, kind: str, what: str) -> str:
        """Passes a token of a kind. ProgramSyntaxError: something else comes next."""
        if self.here.kind != kind:
            self.fail(f"expected {what}, found {self.here.text!r}")
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
        negative = self.accept("-")
        value = int(self.of_kind("int", "an integer"))
        return -value if negative else value

    def fail(self, reason: str, token: Token | None = None) -> NoReturn:
        """Raises ``ProgramSyntaxError`` with the line and column of a token, else the next one."""
        start = (token or self.here).start
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        raise ProgramSyntaxError(f"line {line}, column {column}: {reason}.")
