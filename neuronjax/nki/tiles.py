"""Functions of `nki.language` that make tensors, or bring them from one memory to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from neuronjax.errors import KernelError, UnsupportedProgramError, quoted
from neuronjax.nki import isa
from neuronjax.nki.constants import OPERATORS, MemoryRegion
from neuronjax.nki.dtypes import DType, element_type, stored
from neuronjax.nki.tensor import Tensor, whole
from neuronjax.nki.tile_size import TileSize
from neuronjax.nki.tracing import current
from neuronjax.program.dma import DevicePrint
from neuronjax.program.operand import Kind, Memory

_MEMORIES: Mapping[MemoryRegion, tuple[Memory, Kind]] = {
    MemoryRegion.sbuf: (Memory.SBUF, Kind.SCRATCH),
    MemoryRegion.psum: (Memory.PSUM, Kind.SCRATCH),
    MemoryRegion.private_hbm: (Memory.HBM, Kind.SCRATCH),
    MemoryRegion.shared_hbm: (Memory.HBM, Kind.RESULT),
}

_BANK = TileSize.psum_bank_fmax_bytes
"""Tiles of PSUM begin with a bank (NKI migration guide, "Improved allocation API")."""


def ndarray(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str | None = "",
    address: tuple[int, int] | None = None,
) -> Tensor:
    """A tensor without values, in SBUF, PSUM or HBM. A kernel may return those in `shared_hbm`, and
    one of a single program any in HBM.

    Messages call a tile by its `name`. `address` is the first partition and the first byte in it
    of a tile; without one the compiler chooses. Tiles may lie at the same place: what uses one then
    waits for what uses the other.

    Raises:
      UnsupportedProgramError: an address in HBM, or another that is no pair; a name that is no
        string; a tile without dimensions.
      KernelError: an address in PSUM at which no bank begins.
    """
    memory, kind = _MEMORIES[_region(buffer)]
    if not isinstance(name, str | None):
        raise UnsupportedProgramError(
            f"{current().line()}: name={quoted(name)} is no name of a tensor; pass a string."
        )
    if address is not None and not _is_address(address):
        raise UnsupportedProgramError(
            f"{current().line()}: address={quoted(address)} is no place of a tile; pass its first "
            "partition and its first byte there, such as (0, 1024)."
        )
    if address is not None and memory is Memory.HBM:
        raise UnsupportedProgramError(
            f"{current().line()}: address={address} cannot be chosen in HBM; pass address for "
            "nl.sbuf and nl.psum only."
        )
    if address is not None and memory is Memory.PSUM and address[1] % _BANK:
        raise KernelError(
            f"{current().line()}: address={address} is {address[1] % _BANK} bytes into a bank of "
            f"PSUM; a tile there begins with a bank, so pass a multiple of {_BANK} bytes."
        )
    number = element_type(dtype)
    sizes, trace = _sizes(shape), current()
    if not sizes and memory is not Memory.HBM:
        raise UnsupportedProgramError(
            f"{trace.line()}: a tile has one dimension at least, its partitions; pass a shape such "
            "as (128, 1)."
        )
    made = trace.buffer(memory, stored(number), sizes, kind, address=address, label=name or "")
    return whole(made, number)


def _is_address(address: object) -> bool:
    return (
        isinstance(address, tuple | list)
        and len(address) == 2
        and all(isinstance(place, int) and place >= 0 for place in address)
    )


def _region(buffer: MemoryRegion | str) -> MemoryRegion:
    try:
        return MemoryRegion(buffer)
    except ValueError:
        names = ", ".join(f"nl.{region.value}" for region in MemoryRegion)
        raise UnsupportedProgramError(
            f"{current().line()}: {quoted(buffer)} is no memory; pass one of {names}."
        ) from None


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a shape, which are known when the kernel is traced."""
    is_sequence = isinstance(shape, list | tuple)
    sizes = [size for size in shape if hasattr(size, "__index__")] if is_sequence else []
    numbers = tuple(size.__index__() for size in sizes)
    if not is_sequence or len(sizes) < len(shape) or any(size < 1 for size in numbers):
        raise UnsupportedProgramError(
            f"{current().line()}: {quoted(shape)} is no shape of a tensor; pass a tuple of "
            "integers that are at least 1."
        )
    return numbers


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of one value."""
    tile = ndarray(shape, dtype, buffer, name)
    isa.memset(tile, fill_value)
    return tile


def zeros(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of zeros."""
    return full(shape, 0.0, dtype, buffer, name)


def ones(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of ones."""
    return full(shape, 1.0, dtype, buffer, name)


def empty_like(
    x: Tensor, dtype: DType = None, buffer: MemoryRegion | str | None = None, name: str = ""
) -> Tensor:
    """A tensor without values of the shape of `x`, by default of its dtype and in its memory."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(
    x: Tensor, dtype: DType = None, buffer: MemoryRegion | str | None = None, name: str = ""
) -> Tensor:
    """A tile of zeros of the shape of `x`, by default of its dtype and in SBUF."""
    return zeros(x.shape, dtype or x.dtype, buffer or MemoryRegion.sbuf, name)


def load(src: Tensor, dtype: DType = None) -> Tensor:
    """A tile of SBUF with the values of a tensor in HBM, converted if `dtype` is another."""
    tile = ndarray(src.shape, src.dtype)
    isa.dma_copy(tile, src)
    return converted(tile, dtype)


def load_transpose2d(src: Tensor, dtype: DType = None) -> Tensor:
    """A tile of SBUF with the transpose of a matrix in HBM."""
    tile = ndarray(src.shape[::-1], src.dtype)
    isa.dma_transpose(tile, src)
    return converted(tile, dtype)


def store(dst: Tensor, value: Tensor) -> None:
    """Writes a tile to a tensor in HBM."""
    isa.dma_copy(dst, value)


def device_print(print_prefix: str, tensor: Tensor) -> None:
    """Prints the values of a tensor in SBUF or HBM behind a text, each time the kernel gets there.

    UnsupportedProgramError: the text is no string, or the tensor is in PSUM.
    """
    trace = current()
    if not isinstance(print_prefix, str):
        raise UnsupportedProgramError(
            f"{trace.line()}: the prefix of device_print is {quoted(print_prefix)}; pass a string."
        )
    if tensor.buffer is MemoryRegion.psum:
        raise UnsupportedProgramError(
            f"{trace.line()}: device_print takes no tensor in PSUM; print nl.copy(tensor)."
        )
    trace.add(DevicePrint(prefix=print_prefix, src=tensor.access(), queue=1))


def copy(x: Tensor, dtype: DType = None) -> Tensor:
    """A tile of SBUF with the values of a tile."""
    tile = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_copy(tile, x)
    return tile


def converted(x: Tensor, dtype: DType) -> Tensor:
    """The tile itself if it has the type, else a copy of it that does; None: any type."""
    return x if dtype is None or element_type(dtype) == x.dtype else copy(x, dtype)


def shared_constant(constant: np.ndarray | str) -> Tensor:
    """A tensor in HBM with the values of an array or of a file ``.npy``."""
    array = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    dtype, data = element_type(array.dtype), array.tobytes()
    made = current().buffer(Memory.HBM, stored(dtype), array.shape, Kind.CONSTANT, data)
    return whole(made, dtype)


def shared_identity_matrix(n: int, dtype: DType = "uint8", dst: Tensor | None = None) -> Tensor:
    """The identity [n, n] in SBUF."""
    tile = ndarray((n, n), dtype) if dst is None else dst
    isa.affine_select(tile, [[-1, n]], 1, ones((n, n), tile.dtype), 0.0, cmp_op=OPERATORS["equal"])
    return tile


def rand(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of numbers from [0, 1), multiples of 2⁻²⁴ before they are rounded to `dtype`."""
    bits, numbers = ndarray(shape, "uint32"), ndarray(shape, dtype, buffer, name)
    isa.rng(bits)
    isa.tensor_scalar(bits, bits, OPERATORS["right_shift"], 8)
    isa.tensor_scalar(numbers, bits, OPERATORS["multiply"], 2.0**-24)
    return numbers


def random_seed(seed: Tensor) -> None:
    """Lets `rand` begin again, from a tile [1, 1] of 32 bits."""
    isa.set_rng_seed(seed)


FUNCTIONS = {
    function.__name__: function
    for function in (
        ndarray, full, zeros, ones, empty_like, zeros_like, load, load_transpose2d, store, copy,
        device_print,
        shared_constant, shared_identity_matrix, rand, random_seed,
    )
}  # fmt: skip
"""Name in `nki.language` -> the function."""
