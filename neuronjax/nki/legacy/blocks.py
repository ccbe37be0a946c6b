"""Tensors with block dimensions, of which each block is a tile of its own."""

from __future__ import annotations

from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError, quoted
from neuronjax.nki import tiles
from neuronjax.nki.legacy.lives import Declaration, lives
from neuronjax.nki.legacy.tile import Tile
from neuronjax.nki.legacy.walks import plain_view
from neuronjax.nki.legacy.writing import assign, is_fresh, ranges_of
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import current


class Blocks:
    """A tensor with block dimensions, which its indices begin with."""

    def __init__(self, declaration: Declaration, home: Tensor | None = None) -> None:
        self._declaration, self._home = declaration, home
        self.shape = (*declaration.blocks, *declaration.shape)
        self.dtype, self.ndim, self.buffer = declaration.dtype, len(self.shape), declaration.buffer

    def __repr__(self) -> str:
        return f"a tensor {self.dtype.name}{list(self.shape)} of blocks"

    def _block(self, block: tuple[int, ...]) -> Tile:
        block_tile = Tile.of(lives().block(self._declaration, block))
        return block_tile._with(declaration=self._declaration.number)

    def _split(self, index: object) -> tuple[tuple[int, ...], tuple[object, ...]]:
        entries = index if isinstance(index, tuple) else (index,)
        sizes = self._declaration.blocks
        block = entries[: len(sizes)]
        if len(block) < len(sizes) or not all(hasattr(entry, "__index__") for entry in block):
            raise UnsupportedProgramError(
                f"{current().line()}: [{', '.join(map(quoted, entries))}] of {self!r}; give an "
                f"integer or a loop variable for each of its {len(sizes)} block dimensions."
            )
        numbers = tuple(int(entry.__index__()) for entry in block)
        for axis, (number, size) in enumerate(zip(numbers, sizes, strict=True)):
            if not 0 <= number < size:
                raise OutOfBoundsError(
                    f"{current().line()}: {number} is out of bounds for dimension {axis}, which "
                    f"has {size} blocks."
                )
        return numbers, entries[len(sizes) :] or (...,)

    def __getitem__(self, index: object) -> Tile:
        block, rest = self._split(index)
        if self._home is None:
            return self._block(block)[rest]
        return self._reloaded(block, rest)

    def __setitem__(self, index: object, value: object) -> None:
        block, rest = self._split(index)
        if self._home is None:
            assign(self._block(block)[rest], value)
            return
        self._save(block, rest, value)

    def _part(
        self, block: tuple[int, ...], rest: tuple[object, ...]
    ) -> tuple[Tensor, tuple[object, ...]]:
        """What lies in HBM of a part of a block, and by what it is known."""
        assert self._home is not None
        view = Tile.of(self._home)
        whole = view._with(shape=view.shape[len(block) :], strides=view.strides[len(block) :])
        start = sum(n * stride for n, stride in zip(block, view.strides, strict=False))
        part = whole._with(offset=view.offset + start)[rest]
        key = (self._declaration.number, part.offset, part.shape, part.strides)
        return plain_view(part), key

    def _reloaded(self, block: tuple[int, ...], rest: tuple[object, ...]) -> Tile:
        alive = lives()
        alive.arrive()
        part, key = self._part(block, rest)
        known = alive.at_hand.get(key)
        if known is None:
            known = tiles.load(part)
            alive.at_hand[key] = known
            alive.reloaded += known.size * known.dtype.storage_bits // 8
        return Tile.of(known)

    def _save(self, block: tuple[int, ...], rest: tuple[object, ...], value: object) -> None:
        alive = lives()
        alive.arrive()
        part, key = self._part(block, rest)
        for other in [
            other for other in alive.at_hand if isinstance(other, tuple) and other[0] == key[0]
        ]:
            if other != key:
                alive.at_hand.pop(other)
        if isinstance(value, Tile) and value.dtype == part.dtype and is_fresh(value):
            kept: Tensor | None = plain_view(value)
        else:
            known = alive.at_hand.get(key)
            kept = assign(
                Tile.of(tiles.ndarray(part.shape, part.dtype) if known is None else known), value
            )
        if kept is not None:
            if kept.shape == part.shape:
                alive.at_hand[key] = kept
            saved = Tile.of(part).narrowed(ranges_of(value, part.shape))
            tiles.store(plain_view(saved), kept)
            alive.saved += kept.size * kept.dtype.storage_bits // 8
