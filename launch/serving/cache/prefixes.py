"""Which block holds which part of which text: a tree of blocks, each a child of the one before."""

from collections.abc import Sequence
from typing import NamedTuple

ROOT = 0


def adapter_root(number: int) -> int:
    """The root of texts that an adapter reads: its keys and values are no other's."""
    return -number


class Entry(NamedTuple):
    """A block and its place in the tree."""

    block: int
    node: int  # number of this place: the parent of the block after it


class PrefixIndex:
    """Finds the block that follows a given prefix and holds given tokens.

    Keys are the tokens themselves, so that no two texts are ever mistaken for each other. A block
    that is forgotten makes those after it unreachable: they are the first to be forgotten anyway,
    because the end of a text is given back before its beginning.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, tuple[int, ...]], Entry] = {}
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}  # by block
        self._nodes = ROOT

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, parent: int, tokens: Sequence[int]) -> Entry | None:
        """The block with these tokens after the prefix `parent`, if there is one."""
        return self._entries.get((parent, tuple(tokens)))

    def add(self, parent: int, tokens: Sequence[int], block: int) -> Entry:
        """Notes that `block` holds these tokens after the prefix `parent`.

        If another block does already, its entry is returned and `block` stays unknown.
        """
        key = (parent, tuple(tokens))
        known = self._entries.get(key)
        if known is not None:
            return known
        self._nodes += 1
        entry = self._entries[key] = Entry(block, self._nodes)
        self._keys[block] = key
        return entry

    def forget(self, block: int) -> None:
        """The content of `block` is about to be overwritten."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._entries[key]

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._keys.clear()
