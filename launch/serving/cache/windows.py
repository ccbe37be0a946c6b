"""Which keys of a text the layers of a group look at."""

from collections.abc import Sequence
from typing import NamedTuple


class KeyWindow(NamedTuple):
    """The window of a group of layers that share a block table."""

    size: int | None = None  # positions, the query's own included; None = all before it
    is_chunk: bool = False  # texts are cut into pieces of that size, which do not see each other

    def first(self, position: int) -> int:
        """The first position that a query at this one, or a later one, looks at."""
        if self.size is None:
            return 0
        if self.is_chunk:
            return position // self.size * self.size
        return max(position - (self.size - 1), 0)

    def most_blocks(self, tokens: int, block_size: int) -> int | None:
        """How many blocks the keys of so many queries in a row lie in at most; None = no limit."""
        # So many positions in a row touch one block more than they fill, wherever they begin.
        return None if self.size is None else (self.size + tokens - 3) // block_size + 2


WHOLE = KeyWindow()


def blocks_of_text(
    windows: Sequence[KeyWindow], length: int, chunk: int, block_size: int
) -> list[int]:
    """How many blocks a text of that length holds at once in each group, at most, when it is
    computed in pieces of up to `chunk` tokens."""
    whole = -(-length // block_size)
    mosts = (window.most_blocks(chunk, block_size) for window in windows)
    return [whole if most is None else min(whole, most) for most in mosts]
