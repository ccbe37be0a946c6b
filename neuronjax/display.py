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
