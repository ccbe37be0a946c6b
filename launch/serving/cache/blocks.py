"""Who holds which block of the paged cache."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launch.serving.cache.prefixes import Key, PrefixIndex
from launch.serving.cache.windows import WHOLE, KeyWindow

SCRATCH = 0  # the block that padding writes to; it is never given to anybody


class Prefix(NamedTuple):
    """What the cache holds of a text's beginning."""

    length: int  # whole blocks of text
    tables: list[list[int]]  # `length` blocks for each group of layers; scratch = not needed

    @property
    def blocks(self) -> list[int]:
        """All blocks of the prefix but scratch."""
        return [block for table in self.tables for block in table if block != SCRATCH]


class BlockPool:
    """Blocks 1 … `blocks`, counted by holder, for any group of layers. What nobody holds is kept
    for texts with the same beginning until its place is needed, the longest unused first."""

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        reuse: bool,
        windows: Sequence[KeyWindow] = (WHOLE,),
    ) -> None:
        self.blocks, self.block_size, self._windows = blocks, block_size, windows
        self._whole = [group for group, window in enumerate(windows) if window.size is None]
        self._partial = [group for group, window in enumerate(windows) if window.size is not None]
        self._reuse = reuse
        self._holders = [0] * (blocks + 1)
        self._unused = list(range(blocks, 0, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()  # known to the index, held by nobody
        self._index = PrefixIndex()

    @property
    def available(self) -> int:
        """How many blocks can be taken."""
        return len(self._unused) + len(self._kept)

    @property
    def known(self) -> int:
        """How many blocks have a content that others may use."""
        return len(self._index)

    @property
    def held(self) -> int:
        """How many blocks somebody holds."""
        return self.blocks - self.available

    def take(self, count: int) -> list[int]:
        """`count` blocks with one holder; no more than are available."""
        for _ in range(count - len(self._unused)):
            block, _ = self._kept.popitem(last=False)
            self._index.forget(block)
            self._unused.append(block)
        first = len(self._unused) - count
        blocks = self._unused[first:]
        del self._unused[first:]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def prefix(self, keys: Sequence[Key]) -> Prefix:
        """The longest beginning of a text, given the keys of its blocks, of which every group of
        layers has what it will look at. Nobody holds the blocks for that: see `hold`."""
        for group in self._whole:
            keys = keys[: self._run(group, keys)]
        count = self._count_seen(keys) if self._partial else len(keys)
        return Prefix(
            count, [self._table(group, keys[:count]) for group in range(len(self._windows))]
        )

    def _run(self, group: int, keys: Sequence[Key]) -> int:
        """How many of these keys the index knows, up to the first that it does not."""
        for count, key in enumerate(keys):
            if self._index.find(group, key) is None:
                return count
        return len(keys)

    def _count_seen(self, keys: Sequence[Key]) -> int:
        """The most of these keys after which all groups that see a window have what they see."""
        runs = dict.fromkeys(self._partial, 0)  # blocks in a row that are known, up to this one
        count = 0
        for end, key in enumerate(keys, 1):
            for group in self._partial:
                known = self._index.find(group, key) is not None
                runs[group] = runs[group] + 1 if known else 0
            if all(run >= end - self.first_seen(group, end) for group, run in runs.items()):
                count = end
        return count

    def knows(self, key: Key) -> bool:
        """Whether a block with this key is known to any group of layers."""
        groups = range(len(self._windows))
        return any(self._index.find(group, key) is not None for group in groups)

    def first_seen(self, group: int, blocks: int) -> int:
        """The first block that a group's layers look at after so many blocks of text."""
        return self._windows[group].first(blocks * self.block_size) // self.block_size

    def _table(self, group: int, keys: Sequence[Key]) -> list[int]:
        first = self.first_seen(group, len(keys))
        blocks = (self._index.find(group, key) for key in keys[first:])
        return [SCRATCH] * first + [block for block in blocks if block is not None]

    def hold(self, blocks: Sequence[int]) -> None:
        """Adds a holder to each block."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._kept[block]
            self._holders[block] += 1

    def count_unheld(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody holds."""
        return sum(self._holders[block] == 0 for block in blocks)

    def release(self, blocks: Iterable[int]) -> None:
        """Takes a holder from each block; the first blocks will be overwritten first."""
        for block in blocks:
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._index:
                    self._kept[block] = None
                else:
                    self._unused.append(block)

    def publish(self, group: int, keys: Iterable[Key], blocks: Iterable[int]) -> None:
        """Lets texts with these keys use these blocks of a group of layers, which are full; scratch
        blocks are passed over."""
        if self._reuse:
            for key, block in zip(keys, blocks, strict=True):
                if block != SCRATCH:
                    self._index.add(group, key, block)

    def forget(self) -> None:
        """No text may use what others have computed, for instance because weights changed."""
        self._index.clear()
        self._unused.extend(self._kept)
        self._kept.clear()
