"""Key tables of a backbone that may have a head beside it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.weights.table import KeyTable, Row, prefixed

STEPS = r".*\.num_batches_tracked"
"""What PyTorch's batch norms count."""


@dataclass(frozen=True)
class Backbone:
    """The rows of a backbone, and the prefix that their keys have beside a head."""

    prefix: str
    rows: Sequence[Row]
    ignored: Sequence[str] = ()  # keys that hold no parameter

    def table(
        self,
        head: Sequence[Row] | None,
        heads: Iterable[Row] = (),
        ignored: Sequence[str] = (),
    ) -> KeyTable:
        """The table of the backbone with a head or without. With a head, the keys of the backbone
        have the prefix; files that lack it, or have it without a head, are read too. Without one,
        the keys of all `heads` are ignored."""
        shown = "" if head is None else self.prefix
        unread = [] if head is not None else [rf"({'|'.join(_first_parts(heads))})\..*"]
        return KeyTable(
            (*prefixed(shown, self.rows), *(head or ())),
            renames=(
                (rf"^{re.escape(self.prefix)}", ""),
                (rf"^({'|'.join(_first_parts(self.rows))})\.", rf"{shown}\1."),
            ),
            ignored=(*self.ignored, STEPS, *ignored, *unread),
        )


def _first_parts(rows: Iterable[Row]) -> list[str]:
    return sorted({key.text.split(".")[0] for row in rows for key in row.keys})
