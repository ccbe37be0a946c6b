"""`nki.language`: memories, dtypes, tensors, operators and functions of tiles.

`NOT_BUILT` names the functions that only say so on call.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronjax.errors import KernelError, quoted
from neuronjax.nki import dynamic_loops, elementwise, reductions, tiles
from neuronjax.nki.constants import OPERATORS, MemoryRegion, Operator
from neuronjax.nki.dtypes import BOOL
from neuronjax.nki.dynamic_loops import VirtualRegister
from neuronjax.nki.known_failures import watched
from neuronjax.nki.loops import affine_range as affine_range
from neuronjax.nki.loops import loop_range
from neuronjax.nki.loops import static_range as static_range
from neuronjax.nki.objects import NKIObject as NKIObject
from neuronjax.nki.refusal import checked, refusing, removed, unknown
from neuronjax.nki.tensor import DynamicSlice, Tensor
from neuronjax.nki.tile_size import TileSize
from neuronjax.nki.tracing import current
from neuronjax.program.element_types import ElementType, element_type_named

if TYPE_CHECKING:
    from neuronjax.nki.declared_language import *  # noqa: F403

NkiTensor = Tensor
sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm
tile_size = TileSize()
sequential_range = loop_range
dynamic_range, fori_loop = dynamic_loops.dynamic_range, dynamic_loops.fori_loop
while_loop = dynamic_loops.while_loop

DTYPES: Mapping[str, ElementType] = {
    **{
        name: element_type_named(name)
        for name in (
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "bfloat16", "tfloat32"),
            *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
            *("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"),
        )
    },
    "bool_": BOOL,
}
"""Name -> dtype."""

NOT_BUILT: Mapping[str, str] = {
    "fmod": "no sequence of instructions gives the exact remainder; use floor and divide",
    "mod": "no sequence of instructions gives the exact remainder; use floor and divide",
}
"""Function that raises ``UnsupportedProgramError`` on call -> the reason."""


REMOVED: Mapping[str, str] = {
    "arange": "index with slices or nl.ds",
    "mgrid": "index with slices or nl.ds",
    "par_dim": "give the size alone: dimension 0 of a tile is the partition",
    "static_cast": "use nl.copy with a dtype",
    "loop_reduce": "update a tile within the loop",
    "add_dep": "leave it out: engines wait for what they read",
    "all_reduce": "use nki.collectives.all_reduce, or nl.sum within a program",
    "atomic_rmw": "load, add and store, or use nki.isa.dma_compute",
    "fp32": "write the number: fp32.min is -3.4028235e38",
    "sharded_hbm": "use nl.shared_hbm",
    "spmd_dim": "call the kernel with the number of physical cores, as in kernel[2]",
}
"""Name of older versions of NKI -> what to write instead."""


def is_hbm(buffer: MemoryRegion | str) -> bool:
    """Whether a memory is HBM, shared or not."""
    return MemoryRegion(buffer) in (private_hbm, shared_hbm)


def is_sbuf(buffer: MemoryRegion | str) -> bool:
    """Whether a memory is SBUF."""
    return MemoryRegion(buffer) is sbuf


def is_psum(buffer: MemoryRegion | str) -> bool:
    """Whether a memory is PSUM."""
    return MemoryRegion(buffer) is psum


def is_on_chip(buffer: MemoryRegion | str) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return not is_hbm(buffer)


@checked("nki.language.ds")
def ds(start: int | VirtualRegister, size: int) -> slice | DynamicSlice:
    """The `size` elements from `start` on, which may be a register."""
    if isinstance(start, VirtualRegister):
        return DynamicSlice(start.register, operator.index(size))
    first = operator.index(start)
    return slice(first, first + operator.index(size))


def nc(cores: int) -> int:
    """A number of physical cores, as the grid of a kernel: `kernel[nl.nc(2)]`."""
    return cores


@checked("nki.language.program_id")
def program_id(axis: int = 0) -> int:
    """The place of the program in its grid, along an axis: 0 without a grid."""
    trace = current()
    _check_axis(axis)
    return int(np.unravel_index(trace.program, trace.grid)[axis]) if trace.grid else 0


@checked("nki.language.num_programs")
def num_programs(axes: int | Sequence[int] = 0) -> int:
    """The programs of the grid along axes: 1 without a grid."""
    grid = current().grid
    chosen = (axes,) if isinstance(axes, int) else axes
    for axis in chosen:
        _check_axis(axis)
    return math.prod(grid[axis] for axis in chosen) if grid else 1


def _check_axis(axis: int) -> None:
    grid = current().grid
    if not isinstance(axis, int) or (grid and not -len(grid) <= axis < len(grid)):
        raise KernelError(
            f"{current().line()}: the grid {list(grid)} has no axis {quoted(axis)}; use an axis "
            f"below {len(grid) or 1}, or call the kernel with more numbers in brackets."
        )


def program_ndim() -> int:
    """The dimensions of the grid: 0 if there is none."""
    return len(current().grid)


def no_reorder() -> contextlib.AbstractContextManager[None]:
    """Engines keep the order of the program, inside such a block or not; they wait for each other
    where data does."""
    return contextlib.nullcontext()


FUNCTIONS: Mapping[str, Any] = {
    **OPERATORS,
    **elementwise.FUNCTIONS,
    **reductions.FUNCTIONS,
    **tiles.FUNCTIONS,
    "copy": elementwise.FUNCTIONS["copy"],
}
"""Name -> an operator, or a function of tiles, or both."""


LOOPS: Mapping[str, type[range]] = {"range": range}
"""Name -> a loop that is always written out, where this module cannot have the name itself."""


_CHECKED: Mapping[str, Operator | Callable[..., object]] = {
    name: function
    if isinstance(function, Operator)
    else checked(f"nki.language.{name}")(watched(f"nki.language.{name}", function))
    for name, function in FUNCTIONS.items()
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for names in (_CHECKED, DTYPES, LOOPS):
            if name in names:
                return names[name]
        if name in NOT_BUILT:
            return refusing(f"nki.language.{name}", NOT_BUILT[name])
        if name in REMOVED:
            raise removed("nki.language", name, REMOVED[name])
        raise unknown("nki.language", name, __dir__())


def __dir__() -> list[str]:
    public = [name for name in globals() if not name.startswith("_")]
    return [*public, *FUNCTIONS, *DTYPES, *LOOPS, *NOT_BUILT]
