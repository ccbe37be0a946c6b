"""Tensors with block dimensions, of which each block is a tile of its own."""

from __future__ import annotations

from neuronjax.errors import OutOfBoundsError, UnsupportedProgramError, quoted
from neuronjax.nki import tiles
from neuronjax.nki.legacy.index import refuse_registers
from neuronjax.nki.legacy.lives import Declaration, lives
from neuronjax.nki.legacy.tile import Tile
from neuronjax.nki.legacy.walks import plain_view
from neuronjax.nki.legacy.writing import LoopReduced, assign, is_fresh, ranges_of
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
        refuse_registers(*entries)
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
            part = self._block(block)[rest]
            lives().traffic[self._declaration.number] += _nbytes(part)
            return part
        return self._reloaded(block, rest)

    def __setitem__(self, index: object, value: object) -> None:
        block, rest = self._split(index)
        if self._home is None:
            part = self._block(block)[rest]
            lives().traffic[self._declaration.number] += _nbytes(part)
            assign(part, value)
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
            fill = self._first_value(block)
            if fill is not None and part.shape == self._declaration.shape:
                known = tiles.full(part.shape, fill, part.dtype)
            else:
                if fill is not None:
                    self._save_first_value(block, fill)
                known = tiles.load(part)
                alive.reloaded += _nbytes(part)
            alive.at_hand[key] = known
        return Tile.of(known)

    def _first_value(self, block: tuple[int, ...]) -> float | None:
        """The value of a block of which nothing was saved yet, if it has one."""
        alive, own = lives(), self._declaration
        return None if (own.number, block) in alive.written else alive.fill_of(own)

    def _save_first_value(self, block: tuple[int, ...], fill: float) -> None:
        home, _ = self._part(block, (...,))
        tiles.store(home, tiles.full(home.shape, fill, home.dtype))
        lives().written.add((self._declaration.number, block))

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
            is_added = isinstance(value, LoopReduced)
            known = self._reloaded(block, rest) if is_added else alive.at_hand.get(key)
            kept = assign(
                Tile.of(tiles.ndarray(part.shape, part.dtype) if known is None else known), value
            )
        if kept is not None:
            if kept.shape == part.shape:
                alive.at_hand[key] = kept
            saved = Tile.of(part).narrowed(ranges_of(value, part.shape))
            fill = self._first_value(block)
            if fill is not None and saved.shape != self._declaration.shape:
                self._save_first_value(block, fill)
            tiles.store(plain_view(saved), kept)
            alive.saved += _nbytes(kept)
            alive.written.add((key[0], block))


def _nbytes(part: Tensor) -> int:
    return part.size * part.dtype.storage_bits // 8
