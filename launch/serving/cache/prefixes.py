"""Which block holds which part of which text."""

from array import array
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

Key = bytes
"""The key of a block of a text: a digest of all tokens up to its end."""

ROOT: Key = b""


def adapter_root(number: int) -> Key:
    """The root of texts that an adapter reads: its keys and values are no other's."""
    return f"adapter {number}".encode()


def salted_root(root: Key, salt: str) -> Key:
    """The root of texts that are shared with those of the same salt alone."""
    return sha256(root + b"salt" + salt.encode()).digest() if salt else root


def source_root(source: Sequence[int] | np.ndarray) -> Key:
    """The root of texts that look at a source, tokens or features: what is kept of them is made of
    it."""
    if isinstance(source, np.ndarray):
        return sha256(b"features" + source.tobytes()).digest()
    (root,) = text_keys(source, len(source), b"source")
    return root


def text_keys(tokens: Sequence[int], block_size: int, parent: Key) -> list[Key]:
    """The keys of the whole blocks of a text; `parent` is the key of the block before, or a root.

    SHA-256: nobody knows two texts with the same digest.
    """
    numbers = array("i", tokens)
    text, width = numbers.tobytes(), block_size * numbers.itemsize
    keys = []
    for start in range(0, len(text) - width + 1, width):
        parent = sha256(parent + text[start : start + width]).digest()
        keys.append(parent)
    return keys


class PrefixIndex:
    """Finds the block of a group of layers that has a key."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, Key], int] = {}
        self._keys: dict[int, tuple[int, Key]] = {}  # by block

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, group: int, key: Key) -> int | None:
        """The block with this key, if there is one."""
        return self._blocks.get((group, key))

    def add(self, group: int, key: Key, block: int) -> None:
        """Notes what `block` holds. If another block does already, this one stays unknown."""
        if self._blocks.setdefault((group, key), block) == block:
            self._keys[block] = group, key

    def forget(self, block: int) -> None:
        """The content of `block` is about to be overwritten."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key]

    def clear(self) -> None:
        """Forgets the contents of all blocks."""
        self._blocks.clear()
        self._keys.clear()
