"""How results look where people look at them: in a notebook, and at the prompt."""

from __future__ import annotations

from html import escape


class Displayed:
    """A base of records that print as text: a cell of a notebook shows the text, `repr` a line."""

    __slots__ = ()

    def __repr__(self) -> str:
        first, _, rest = str(self).strip().partition("\n")
        return f"<{type(self).__name__}: {first}{' …' if rest else ''}>"

    def _repr_html_(self) -> str:
        """The text with its columns, as IPython asks for it."""
        return f'<pre style="line-height: 1.25; overflow-x: auto">{escape(str(self))}</pre>'


def duration(ns: float) -> str:
    """A time with three significant digits and a unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns:.3g} ns"


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
