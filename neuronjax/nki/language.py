"""`nki.language`: memories, dtypes, operators and tensors of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki import isa
from neuronjax.nki.constants import OPERATORS, Operator
from neuronjax.nki.trace import Tensor, current, whole
from neuronjax.program.element_types import ElementType, element_type_named
from neuronjax.program.operand import Kind, Memory

sbuf, psum, shared_hbm = Memory.SBUF, Memory.PSUM, Memory.HBM
float32, bfloat16, float16 = map(element_type_named, ("float32", "bfloat16", "float16"))
int32, uint32, int8, uint8 = map(element_type_named, ("int32", "uint32", "int8", "uint8"))
affine_range = sequential_range = static_range = range


class tile_size:
    """Limits of tiles."""

    pmax = 128
    psum_fmax = 512
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512


def ds(start: int, size: int) -> slice:
    """The `size` elements from `start` on."""
    return slice(start, start + size)


def ndarray(
    shape: Sequence[int],
    dtype: ElementType,
    buffer: Memory = sbuf,
    name: str = "",
    address: None = None,
) -> Tensor:
    """A tensor without values, in SBUF, PSUM or HBM; those in HBM are what a kernel may return.

    UnsupportedProgramError: an address, which the compiler chooses here.
    """
    if address is not None:
        raise UnsupportedProgramError(f"{current().line()}: addresses are not built yet.")
    kind = Kind.RESULT if buffer is Memory.HBM else Kind.SCRATCH
    return whole(current().buffer(buffer, dtype, tuple(shape), kind))


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: ElementType,
    buffer: Memory = sbuf,
    name: str = "",
) -> Tensor:
    """A tile of one value."""
    tile = ndarray(shape, dtype, buffer)
    isa.memset(tile, fill_value)
    return tile


def zeros(
    shape: Sequence[int], dtype: ElementType, buffer: Memory = sbuf, name: str = ""
) -> Tensor:
    """A tile of zeros."""
    return full(shape, 0.0, dtype, buffer)


def ones(shape: Sequence[int], dtype: ElementType, buffer: Memory = sbuf, name: str = "") -> Tensor:
    """A tile of ones."""
    return full(shape, 1.0, dtype, buffer)


def load(src: Tensor, dtype: ElementType | None = None) -> Tensor:
    """A tile of SBUF with the values of a tensor in HBM, converted if `dtype` is another."""
    tile = ndarray(src.shape, src.dtype)
    isa.dma_copy(tile, src)
    if dtype in (None, src.dtype):
        return tile
    converted = ndarray(src.shape, dtype)
    isa.tensor_copy(converted, tile)
    return converted


def store(dst: Tensor, value: Tensor) -> None:
    """Writes a tile to a tensor in HBM."""
    isa.dma_copy(dst, value)


def __getattr__(name: str) -> Operator:
    """Operators and functions that instructions take, such as `nl.add` and `nl.exp`."""
    if name in OPERATORS:
        return OPERATORS[name]
    raise AttributeError(f"nki.language has no {name!r}, or it is not built yet.")


def __dir__() -> list[str]:
    return [*globals(), *OPERATORS]
