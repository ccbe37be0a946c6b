"""Who holds which block of the paged cache."""

from collections import OrderedDict
from collections.abc import Sequence

from launch.serving.cache.prefixes import ROOT, Entry, PrefixIndex

SCRATCH = 0  # the block that padding writes to; it is never given to anybody


class BlockPool:
    """Blocks 1 … `blocks`, counted by holder. What nobody holds is kept for texts with the same
    beginning until its place is needed, the longest unused first."""

    def __init__(self, blocks: int, block_size: int, *, reuse: bool) -> None:
        self.blocks, self.block_size = blocks, block_size
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

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one holder, or None if there are not so many."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def prefix(self, tokens: Sequence[int], root: int = ROOT) -> list[Entry]:
        """The blocks that hold the beginning of a text, as far as whole blocks of it are known
        below `root`.

        The last token is never among them: the model must see it to say what follows. Nobody holds
        the blocks for that: see `hold`.
        """
        entries: list[Entry] = []
        if not self._reuse:
            return entries
        parent, size = root, self.block_size
        for start in range(0, len(tokens) - size, size):
            entry = self._index.find(parent, tokens[start : start + size])
            if entry is None:
                break
            entries.append(entry)
            parent = entry.node
        return entries

    def hold(self, blocks: Sequence[int]) -> None:
        """One holder more of each block."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._kept[block]
            self._holders[block] += 1

    def count_unheld(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody holds."""
        return sum(self._holders[block] == 0 for block in blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less of each block of a text; its end will be overwritten first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._index:
                    self._kept[block] = None
                else:
                    self._unused.append(block)

    def publish(self, parent: int, tokens: Sequence[int], block: int) -> int:
        """Lets texts with this beginning use a full block; returns its node, for the next block."""
        return self._index.add(parent, tokens, block).node if self._reuse else ROOT

    def forget(self) -> None:
        """No text may use what others have computed, for instance because weights changed."""
        self._index.clear()
        self._unused.extend(self._kept)
        self._kept.clear()

    def _take(self) -> int:
        if self._unused:
            block = self._unused.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._index.forget(block)
        self._holders[block] = 1
        return block
