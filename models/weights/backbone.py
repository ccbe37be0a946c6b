"""Key tables of a backbone that may have a head beside it."""

import re
from collections.abc import Iterable, Sequence

from models.weights.table import KeyTable, Row, prefixed


def backbone_table(
    prefix: str,
    body: Sequence[Row],
    head: Iterable[Row] | None,
    *,
    unread: str,
    ignored: Sequence[str] = (),
) -> KeyTable:
    """With a head, the keys of the body have the prefix; files that lack it, or have it without a
    head, are read too. Keys that match `unread` belong to a head that the model lacks."""
    shown = "" if head is None else prefix
    parts = sorted({key.text.split(".")[0] for line in body for key in line.keys})
    return KeyTable(
        (*prefixed(shown, body), *(head or ())),
        renames=(
            (rf"^{re.escape(prefix)}", ""),
            (rf"^({'|'.join(parts)})\.", rf"{shown}\1."),
        ),
        ignored=(*ignored, *((unread,) if head is None else ())),
    )
