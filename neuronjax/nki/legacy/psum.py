"""What tiles of PSUM hold that a kernel of NKI 0.x has declared.

The first product that is added to a part begins its sum, and products after it are added. So
`nl.zeros` writes nothing where a product comes first; zeros that are read are written before.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki import isa
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current


@dataclass
class _Block:
    """A block of a tile: `unwritten` has its elements in each partition."""

    view: Tensor
    has_zeros: bool
    unwritten: np.ndarray

    def part(self, view: Tensor) -> tuple[np.ndarray, ...]:
        """Returns the numbers of a view's partitions and, for each of these, of its elements."""
        rows = view.partition - self.view.partition + np.arange(view.shape[0])
        steps = (
            np.arange(size) * stride
            for size, stride in zip(view.shape[1:], view.strides[1:], strict=True)
        )
        offsets = functools.reduce(np.add.outer, steps, np.array(view.offset - self.view.offset))
        return np.ix_(rows, offsets.ravel())


@dataclass
class Sums:
    """Blocks in PSUM of which something is not written yet, by buffer and offset."""

    blocks: dict[str, dict[int, _Block]] = field(default_factory=dict)

    def declare(self, view: Tensor, has_zeros: bool) -> None:
        """A new block, of zeros or of no values."""
        unwritten = np.ones((view.shape[0], view.size // view.shape[0]), bool)
        self.blocks.setdefault(view.storage.name, {})[view.offset] = _Block(
            view, has_zeros, unwritten
        )

    def write(self, view: Tensor) -> None:
        """Notes that a part of a block gets values."""
        if (block := self._block(view)) is not None:
            block.unwritten[block.part(view)] = False

    def read(self, view: Tensor) -> None:
        """Writes the zeros that a part still has."""
        block = self._block(view)
        if block is None or not block.has_zeros:
            return
        unwritten = block.unwritten[block.part(view)]
        if not unwritten.any():
            return
        if block.unwritten.all():
            view = block.view
        elif not unwritten.all():
            raise UnsupportedProgramError(
                f"{current().line()}: `{view.storage.name}` is read where products were added to a "
                "part of what is read, and the rest has the zeros of nl.zeros. Add products to all "
                "of it first, or read the parts apart."
            )
        isa.memset(view, 0.0)
        block.unwritten[block.part(view)] = False

    def begins(self, view: Tensor) -> bool:
        """Whether a product that is added to a part begins its sum.

        UnsupportedProgramError: it would in some of the part.
        """
        block = self._block(view)
        if block is None:
            return False
        unwritten = block.unwritten[block.part(view)]
        if unwritten.any() and not unwritten.all():
            raise UnsupportedProgramError(
                f"{current().line()}: a product is added to a part of `{view.storage.name}` that "
                "meets, but is not, a part to which products were added before. Add them all up in "
                "the same parts, or copy the tile to SBUF and add there."
            )
        return bool(unwritten.all())

    def _block(self, view: Tensor) -> _Block | None:
        blocks = self.blocks.get(view.storage.name, {})
        begin = max((offset for offset in blocks if offset <= view.offset), default=None)
        return None if begin is None else blocks[begin]
