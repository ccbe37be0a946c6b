"""`neuronxcc.nki.language`: NKI 0.x, traced to the instructions of the present dialect."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from neuronjax.errors import KernelError, UnsupportedProgramError, quoted
from neuronjax.nki import elementwise, isa, language, reductions, tiles
from neuronjax.nki.constants import OPERATORS, MemoryRegion, Operator
from neuronjax.nki.dtypes import DType, element_type
from neuronjax.nki.legacy import constants as constants
from neuronjax.nki.legacy.blocks import Blocks
from neuronjax.nki.legacy.index import Mgrid, Predicate, refuse_registers
from neuronjax.nki.legacy.index import arange as arange
from neuronjax.nki.legacy.lives import lives
from neuronjax.nki.legacy.operands import (
    Masked,
    Nothing,
    Operand,
    apply_masked,
    operator_of,
    reduce_any,
)
from neuronjax.nki.legacy.products import product
from neuronjax.nki.legacy.tile import Tile, arithmetic
from neuronjax.nki.legacy.writing import LoopReduced
from neuronjax.nki.loops import affine_range as affine_range
from neuronjax.nki.loops import loop_range
from neuronjax.nki.loops import static_range as static_range
from neuronjax.nki.refusal import unknown
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tile_size import TileSize
from neuronjax.nki.tracing import current

sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm, hbm = (
    MemoryRegion.private_hbm, MemoryRegion.shared_hbm, MemoryRegion.private_hbm,
)  # fmt: skip
tile_size = TileSize()
sequential_range = loop_range
mgrid = Mgrid()
tensor = Tensor


Declared: TypeAlias = Tile | Blocks
"""What a kernel declares: a tile, or tiles of blocks."""
Memory: TypeAlias = MemoryRegion | str | None
"""A memory as `buffer` names it; None is SBUF."""


class Limits:
    """Numbers of a format, as kernels write them: `nl.fp32.min`."""

    min = -3.4028234663852886e38


fp32 = Limits()


class par_dim(int):
    """The size of the dimension that lies on partitions; dimensions before it are of blocks."""


def ds(start: int, size: int) -> slice:
    """The `size` elements from `start` on."""
    refuse_registers(start)
    return slice(start, start + size)


def nc(cores: int) -> int:
    """A number of physical cores, as a dimension of the grid."""
    return cores


def spmd_dim(*sizes: int) -> int:
    """A dimension of the grid of so many cores and programs of each."""
    return math.prod(sizes)


def program_id(axis: int = 0) -> int:
    """The place of the program in its grid, along an axis."""
    alive = lives()
    if not alive.grid:
        return 0
    if not isinstance(axis, int) or not -len(alive.grid) <= axis < len(alive.grid):
        raise KernelError(
            f"{current().line()}: the grid {list(alive.grid)} has no axis {quoted(axis)}."
        )
    return alive.program[axis]


def num_programs(axes: int | Sequence[int] | None = None) -> int:
    """The programs of the grid along axes."""
    grid = lives().grid
    if axes is None:
        return math.prod(grid)
    chosen = (axes,) if isinstance(axes, int) else axes
    return math.prod(grid[axis] for axis in chosen) if grid else 1


def program_ndim() -> int:
    """The dimensions of the grid."""
    return len(lives().grid)


def ndarray(
    shape: Sequence[int],
    dtype: DType = "float32",
    *,
    buffer: Memory = None,
    name: str = "",
    init_value: float | None = None,
    **options: object,
) -> Declared:
    """A tensor; sizes before `nl.par_dim(…)`, or before the first one, are of blocks."""
    fill = None if init_value is None else float(init_value)
    return _declared(shape, dtype, buffer, name, fill)


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: DType,
    *,
    buffer: Memory = None,
    name: str = "",
    lazy_initialization: bool = False,
) -> Declared:
    """A tensor of one value."""
    return _declared(shape, dtype, buffer, name, float(fill_value))


def zeros(
    shape: Sequence[int],
    dtype: DType,
    *,
    buffer: Memory = None,
    name: str = "",
    lazy_initialization: bool = False,
) -> Declared:
    """A tensor of zeros; the first product that is added to it in PSUM begins the sum."""
    return _declared(shape, dtype, buffer, name, 0.0)


def ones(
    shape: Sequence[int], dtype: DType, *, buffer: Memory = None, name: str = "", **options: object
) -> Declared:
    """A tensor of ones."""
    return _declared(shape, dtype, buffer, name, 1.0)


def zeros_like(
    x: Declared, dtype: DType = None, *, buffer: Memory = None, name: str = ""
) -> Declared:
    """A tensor of zeros of the shape of another."""
    return _declared(x.shape, dtype or x.dtype, buffer, name, 0.0)


def empty_like(
    x: Declared, dtype: DType = None, *, buffer: Memory = None, name: str = ""
) -> Declared:
    """A tensor of the shape of another."""
    return _declared(x.shape, dtype or x.dtype, buffer, name, None)


def _declared(
    shape: Sequence[int], dtype: DType, buffer: Memory, name: str, fill: float | None
) -> Declared:
    alive = lives()
    region = MemoryRegion.sbuf if buffer is None else getattr(buffer, "region", buffer)
    region = MemoryRegion.private_hbm if region == "hbm" else MemoryRegion(region)
    sizes = tuple(shape)
    if region in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm):
        return _in_hbm(tuple(map(int, sizes)), dtype, region, name, fill)
    places = [place for place, size in enumerate(sizes) if isinstance(size, par_dim)]
    if len(places) > 1:
        raise UnsupportedProgramError(
            f"{current().line()}: the shape has {len(places)} sizes of nl.par_dim; one dimension "
            "lies on partitions."
        )
    place = places[0] if places else 0
    numbers = tuple(map(int, sizes))
    kind = element_type(dtype)
    own = numbers[place:] if len(numbers) - place > 1 else (*numbers[place:], 1)
    declaration = alive.declare(numbers[:place], own, kind, region, name or "", fill)
    plan = alive.plan
    if plan is not None and declaration.number in plan.spilled:
        home = tiles.ndarray(numbers, kind, MemoryRegion.private_hbm, name or "spilled")
        return Blocks(declaration, home)
    if numbers[:place]:
        return Blocks(declaration)
    alive.place(declaration, ((),))
    return Tile.of(alive.placed[declaration.number, ()])._with(declaration=declaration.number)


def _in_hbm(
    shape: tuple[int, ...], dtype: DType, region: MemoryRegion, name: str, fill: float | None
) -> Tile:
    alive = lives()
    alive.arrive()
    if region is MemoryRegion.shared_hbm and alive.shared_so_far < len(alive.shared):
        shared = alive.shared[alive.shared_so_far]
        alive.shared_so_far += 1
        if shared.shape != shape:
            raise KernelError(
                f"{current().line()}: programs of the grid declare tensors of the shapes "
                f"{list(shared.shape)} and {list(shape)} in nl.shared_hbm; all declare the same."
            )
        return Tile.of(shared)
    fresh = tiles.ndarray(shape, dtype, region, name or "")
    if region is MemoryRegion.shared_hbm:
        alive.shared.append(fresh)
        alive.shared_so_far += 1
    if fill is not None:
        isa.dma_copy(fresh, _constant(np.full(shape, fill, np.float32)))
    return Tile.of(fresh)


def _constant(values: np.ndarray) -> Tensor:
    return tiles.shared_constant(values)


def shared_constant(constant: np.ndarray, dtype: DType = None, **options: object) -> Tile:
    """A tensor in HBM with the values of an array."""
    lives().arrive()
    return Tile.of(tiles.shared_constant(constant))


def load(src: Masked, *, mask: Predicate = None, dtype: DType = None, **options: object) -> Masked:
    """A tile of SBUF with the values of a tensor in HBM."""
    return apply_masked(_load, src, mask=mask, dtype=dtype)


def _load(src: Tensor, dtype: DType = None) -> Tensor:
    if src.ndim < 2:
        src = src.expand_dim(src.ndim) if src.ndim else src.reshape((1, 1))
    return tiles.load(src, dtype)


def store(dst: Masked, value: Operand, *, mask: Predicate = None, **options: object) -> None:
    """Writes a tile to a tensor in HBM."""
    apply_masked(_store, dst, value, mask=mask)


def _store(dst: Tensor, value: Tensor | float) -> None:
    if not isinstance(value, Tensor):
        value = tiles.full(dst.shape, value, dst.dtype)
    if dst.ndim < value.ndim and dst.size == value.size:
        dst = dst.expand_dim(dst.ndim)
    if value.shape != dst.shape:
        value = elementwise.broadcast_to(value, dst.shape)
    if value.buffer is MemoryRegion.psum:
        value = tiles.copy(value, dst.dtype)
    tiles.store(dst, value)


def copy(src: Masked, *, mask: Predicate = None, dtype: DType = None, **options: object) -> Masked:
    """A tile of SBUF with the values of a tile."""
    return apply_masked(tiles.copy, src, mask=mask, dtype=dtype)


def loop_reduce(
    x: Masked,
    op: Operator | np.ufunc,
    loop_indices: Sequence[object],
    *,
    dtype: DType = None,
    mask: Predicate = None,
) -> LoopReduced | Nothing:
    """What a tile is reduced to over all iterations of loops, for the tensor that it is assigned
    to."""
    alive = lives()
    alive.arrive()
    operator = operator_of(op)
    if not isinstance(operator, Operator) or operator.name not in NEUTRAL:
        names = ", ".join(f"nl.{name}" for name in NEUTRAL)
        raise UnsupportedProgramError(
            f"{current().line()}: nl.loop_reduce takes no op={quoted(op)}; pass one of {names}."
        )
    if isinstance(x, Nothing):
        return x
    return LoopReduced(x, OPERATORS[operator.name], NEUTRAL[operator.name])


NEUTRAL: Mapping[str, float] = {
    "add": 0.0, "maximum": Limits.min, "minimum": -Limits.min, "multiply": 1.0,
}  # fmt: skip
"""Operator of `nl.loop_reduce` -> the value that it begins with."""


def matmul(
    x: Masked, y: Masked, *, transpose_x: bool = False, mask: Predicate = None
) -> Masked | None:
    """x · y of tiles, or xᵀ · y; float32 in PSUM."""

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        x, y = (tiles.copy(v) if v.buffer is MemoryRegion.psum else v for v in (x, y))
        return reductions.matmul(x, y, transpose_x)

    return product(multiply, x, y, mask, not transpose_x)


def transpose(x: Masked, *, dtype: DType = None, mask: Predicate = None) -> Masked:
    """The transpose of a tile, in PSUM."""
    return apply_masked(reductions.transpose, x, mask=mask, dtype=dtype)


def broadcast_to(src: Masked, *, shape: Sequence[int]) -> Masked:
    """A tile with dimensions of size 1 repeated."""
    return apply_masked(elementwise.broadcast_to, src, tuple(shape))


def where(
    condition: Masked, x: Operand, y: Operand, *, dtype: DType = None, mask: Predicate = None
) -> Masked:
    """x where the condition is not 0, else y."""
    return apply_masked(elementwise.where, condition, x, y, mask=mask, dtype=dtype)


def device_print(prefix: str, x: Masked, *, mask: Predicate = None) -> None:
    """Prints the values of a tensor when the kernel gets there."""
    apply_masked(functools.partial(tiles.device_print, prefix), x, mask=mask)


@dataclass(frozen=True, repr=False)
class Function(Operator):
    """An operator that is a function of tiles as well."""

    compute: Callable[..., Masked] = field(compare=False)

    def __call__(self, *operands: object, **options: object) -> Masked:
        return self.compute(*operands, **options)


def _binary(
    name: str,
    x: Operand,
    y: Operand,
    *,
    dtype: DType = None,
    mask: Predicate = None,
    **options: object,
) -> Masked:
    return arithmetic(name, x, y, dtype, mask)


def _elementwise(
    function: Callable[..., Tensor], *operands: object, mask: Predicate = None, **options: object
) -> Masked:
    return apply_masked(function, *operands, mask=mask, **options)


_REDUCTIONS = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply"}
_TWO = {name for name, function in elementwise.FUNCTIONS.items() if name in elementwise.BINARY}


def _function(name: str) -> Function:
    if name in _REDUCTIONS:
        reduce = functools.partial(
            _elementwise, functools.partial(reduce_any, reductions.FUNCTIONS[name])
        )
        return Function(_REDUCTIONS[name], reduce)
    if name in _TWO or name == "divide":
        return Function(name, functools.partial(_binary, name))
    present = language.FUNCTIONS[name]
    compute = getattr(present, "compute", present)
    if name == "mean":
        compute = functools.partial(reduce_any, compute)
    return Function(name, functools.partial(_elementwise, compute))


FUNCTIONS: Mapping[str, object] = {
    name: _function(name) if callable(present) else present
    for name, present in language.FUNCTIONS.items()
}


_LOOP = "nl.sequential_range, or nl.{} of the present dialect (import nki.language)"

SUCCESSORS: Mapping[str, str] = {
    "add_dep": "no call: engines wait for what they read",
    "all_reduce": "nl.sum, or nki.collectives.all_reduce of the present dialect",
    "atomic_rmw": "nl.load, add and nl.store, or nki.isa.dma_compute of the present dialect",
    "dynamic_range": _LOOP.format("fori_loop"),
    "fmod": "nl.divide and nl.trunc: no instruction gives a remainder",
    "fori": _LOOP.format("fori_loop"),
    "fori_loop": _LOOP.format("fori_loop"),
    "mod": "nl.divide and nl.floor: no instruction gives a remainder",
    "no_reorder": "no call: engines keep the order in which a kernel is written",
    "sharded_hbm": "nl.shared_hbm",
    "static_cast": "nl.copy with a dtype",
    "while_loop": _LOOP.format("while_loop"),
}
"""Name that is not built, or of the present dialect -> what to write instead."""


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in language.DTYPES:
        return language.DTYPES[name]
    raise unknown("neuronxcc.nki.language", name, __dir__(), SUCCESSORS.get(name))


def __dir__() -> list[str]:
    public = [name for name in globals() if not name.startswith("_")]
    return [*public, *FUNCTIONS, *language.DTYPES]
