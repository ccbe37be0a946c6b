"""How results look where people look at them: in a notebook, and at the prompt."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Row = Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells, with what stands above and below them."""

    rows: Sequence[Row]
    head: Row = ()
    title: str = ""
    note: str = ""

    def __str__(self) -> str:
        rows = [self.head, *self.rows] if self.head else self.rows
        return "\n".join(filter(None, (self.title, aligned(rows), self.note)))

    @property
    def html(self) -> str:
        """The table as HTML for a page; notebooks have a style for tables of its class."""
        title = f"<p><b>{escape(self.title)}</b></p>" if self.title else ""
        head = f"<thead>{_html_row(self.head, 'th')}</thead>" if self.head else ""
        body = "".join(_html_row(row, "td") for row in self.rows)
        table = f'<table class="dataframe">{head}<tbody>{body}</tbody></table>'
        return f"{title}{table}{_html_text(self.note)}"


class Displayed(ABC):
    """A base of records that people look at: a cell of a notebook shows tables, `print` shows them
    as text, and `repr` is a line."""

    __slots__ = ()

    @abstractmethod
    def parts(self) -> Iterable[str | Table]:
        """Text and tables, from top to bottom."""

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts()))

    def __repr__(self) -> str:
        first, _, rest = str(self).strip().partition("\n")
        return f"<{type(self).__name__}: {first}{' …' if rest else ''}>"

    def _repr_html_(self) -> str:
        """The page that IPython asks for."""
        return "".join(
            part.html if isinstance(part, Table) else _html_text(part) for part in self.parts()
        )


def aligned(rows: Iterable[Row]) -> str:
    """Rows as columns of text; the last column is not padded."""
    table = list(rows)
    columns = max(map(len, table), default=0)
    widths = [
        max((len(row[i]) for row in table if i < len(row)), default=0) for i in range(columns)
    ]
    lines = (
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)


def _html_row(cells: Row, kind: str) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{kind}{style}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _html_text(text: str) -> str:
    """Lines of text, with their columns."""
    return f'<pre style="line-height: 1.25; overflow-x: auto">{escape(text)}</pre>' if text else ""


_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def _unit_of(ns: float) -> tuple[str, float]:
    """The largest unit of which a time has at least one, and its ns."""
    return next((unit, size) for unit, size in _TIMES if ns >= size or size == 1)


def duration(ns: float) -> str:
    """A time with three significant digits and a unit."""
    unit, size = _unit_of(ns)
    return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"


def digits(low: float, high: float) -> int:
    """The significant digits that a number deserves which lies between two: a step of the last
    one is at most a tenth of the range, and there are at least two."""
    return max(2, math.ceil(math.log10(10 * high / (high - low)))) if high > low else 3


def rounded(value: float, digits: int = 3) -> str:
    """A number with so many significant digits."""
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(places, 0)}f}"


def duration_within(ns: float, low: float, high: float) -> tuple[str, str]:
    """A time that lies between two, and these two with the digits that it deserves. The time has
    one more, so that small changes of a program show."""
    unit, size = _unit_of(ns)
    shown = digits(low, high)
    first, last = rounded(low / size, shown), rounded(high / size, shown)
    return f"{rounded(ns / size, shown + 1)} {unit}", f"{first} to {last} {unit}"


def nbytes(count: float) -> str:
    """A number of bytes with three significant digits and a unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            digits = ".3g" if count < 1000 * size else ",.0f"
            return f"{count / size:{digits}} {unit}"
    return f"{count:.0f} B"


def counted(count: float, name: str) -> str:
    """A number with its noun."""
    return f"{count:,.0f} {name}" if count == 1 else f"{count:,.0f} {name}s"


def percent(part: float, whole: float) -> str:
    """A share; 0 % if there is no whole."""
    return f"{100 * part / whole if whole else 0:.0f} %"


def without_infinities(value: Any, instead: str | None) -> Any:
    """A document as JSON can have it, with something in the place of infinite numbers."""
    if isinstance(value, dict):
        return {key: without_infinities(entry, instead) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(entry, instead) for entry in value]
    return instead if isinstance(value, float) and math.isinf(value) else value
