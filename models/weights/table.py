"""Key tables: the correspondence of a checkpoint's tensors and a model's parameters, both ways.

Keys and parameter paths are templates: `{i}` stands for a number, the same on both sides. A number
that only the keys have counts the places of a leading axis of the parameter: the row
`experts.{e}.w1.weight` -> `experts_gate` stacks the experts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from models.weights.transforms import SAME, Transform

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Template:
    """A text with numbers in it, such as `layers.{i}.weight`."""

    text: str

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(re.findall(r"\{(\w+)\}", self.text))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = re.split(r"\{(\w+)\}", self.text)  # text, name, text, …
        return re.compile(
            "".join(
                rf"(?P<{piece}>0|[1-9]\d*)" if i % 2 else re.escape(piece)
                for i, piece in enumerate(pieces)
            )
        )

    def match(self, text: str) -> Numbers | None:
        """The numbers for which this template equals `text`; None if there are none."""
        match = self._pattern.fullmatch(text)
        return None if match is None else {k: int(v) for k, v in match.groupdict().items()}

    def fill(self, numbers: Numbers) -> str:
        return self.text.format_map(numbers)


@dataclass(frozen=True)
class Row:
    """Some tensors and the parameters that they hold; most rows have one of each."""

    keys: tuple[Template, ...]
    parameters: tuple[Template, ...]
    transform: Transform

    @property
    def stacked(self) -> str | None:
        """The number that counts the places of the parameters' leading axis, if one does."""
        return next(iter(self.keys[0].names - self.parameters[0].names), None)


def row(
    keys: str | Sequence[str], parameters: str | Sequence[str], transform: Transform = SAME
) -> Row:
    """A row of a key table."""

    def templates(texts: str | Sequence[str]) -> tuple[Template, ...]:
        return tuple(map(Template, [texts] if isinstance(texts, str) else texts))

    return Row(templates(keys), templates(parameters), transform)


def prefixed(keys: str, rows: Sequence[Row], parameters: str = "") -> tuple[Row, ...]:
    """The rows with the prefixes `keys` and `parameters` added to theirs."""

    def longer(prefix: str, templates: Sequence[Template]) -> list[str]:
        return [prefix + template.text for template in templates]

    return tuple(
        row(longer(keys, old.keys), longer(parameters, old.parameters), old.transform)
        for old in rows
    )


@dataclass(frozen=True)
class KeyTable:
    """How a checkpoint of some architecture is laid out.

    Attributes:
      rows: the first row that matches a key is how it is read; the first that matches a parameter
        is how it is written. So the usual layout stands before others that are only read.
      renames: (regular expression, replacement) pairs, applied to every key in order before it is
        looked up: other prefixes, old names.
      ignored: regular expressions of whole keys that hold no parameter, such as constant tables.
      substitutes: (key, other) pairs by the names of the rows: where the first is not stored, the
        second is what it would be, such as one of two tied tables.
      spares_heads: whether keys are left out whose first part no row has: those of other heads.
    """

    rows: tuple[Row, ...]
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    substitutes: tuple[tuple[str, str], ...] = ()
    spares_heads: bool = False

    def canonical(self, key: str) -> str:
        """The key by the names of the rows."""
        for pattern, replacement in self.renames:
            key = re.sub(pattern, replacement, key)
        return key

    def names(self, keys: Sequence[str]) -> dict[str, str]:
        """Each key's name among the rows, after substitution."""
        names = {key: self.canonical(key) for key in keys}
        stored = {name: key for key, name in names.items()}
        for name, other in self.substitutes:
            if name not in stored and other in stored:
                names[stored[other]] = name
        return names

    def ignores(self, key: str) -> bool:
        spellings = (key, self.canonical(key))
        if self.spares_heads and spellings[1].split(".")[0] not in self._first_parts:
            return True
        return any(re.fullmatch(pattern, name) for pattern in self.ignored for name in spellings)

    @cached_property
    def _first_parts(self) -> frozenset[str]:
        return frozenset(key.text.split(".")[0] for row in self.rows for key in row.keys)
