"""What a model of texts is given."""

from collections.abc import Sequence
from typing import NamedTuple


class Text(NamedTuple):
    """One text, or a pair."""

    tokens: Sequence[int]
    types: Sequence[int]  # 1 in the second text of a pair
