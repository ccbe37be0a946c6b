"""What the reference of `nki.isa` forbids or leaves undefined and no rule of programs has.

The compiler's own programs use some of this within what the engines do; kernels are held to what is
documented (NKI ISA, the page of each function, SDK 2.32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neuronjax.errors import UnsupportedProgramError
from neuronjax.nki import constants
from neuronjax.nki.tensor import Tensor
from neuronjax.nki.tracing import Trace
from neuronjax.program.element_types import Integer, Packed
from neuronjax.program.operators import BITVECTOR

Arguments = Mapping[str, Any]
Check = Callable[[Arguments], Iterator[str]]
"""Yields what is wrong, with what to do."""


def _memset(given: Arguments) -> Iterator[str]:
    if isinstance(given["dst"].dtype, Packed) and given["value"] != 0:
        yield f"fills tiles of {given['dst'].dtype.name} with 0 alone; write words of uint32"


def _copy_predicated(given: Arguments) -> Iterator[str]:
    src, dst = given["src"], given["dst"]
    if isinstance(src, Tensor) and _free(src) != _free(dst):
        yield (
            f"takes a src of as many elements per partition as dst, and src is {list(src.shape)} "
            f"where dst is {list(dst.shape)}; broadcast it"
        )


def _dma_copy(given: Arguments) -> Iterator[str]:
    if given["priority"] is not None and given["dge_mode"] is constants.dge_mode.none:
        yield "takes no priority with dge_mode=none; leave out one of them"


def _matmul(given: Arguments) -> Iterator[str]:
    size = given["tile_size"]
    is_double = given["perf_mode"] is not constants.matmul_perf_mode.none
    if is_double and size and size[1] != _COLUMNS:
        yield f"takes no column tiles with perf_mode=double_row; use tile_size=({size[0]}, 128)"


_COLUMNS = 128


def _tensor_scalar(given: Arguments) -> Iterator[str]:
    if given["op1"] is None and given["operand1"] is not None:
        yield "takes no operand1 without op1; leave it out, or say what op1 does with it"


def _bias(given: Arguments) -> Iterator[str]:
    bias = given["bias"]
    if isinstance(bias, Tensor) and bias.dtype.name == "tfloat32":
        yield "takes a bias of any type but tfloat32; make it float32"


def _activate2(given: Arguments) -> Iterator[str]:
    first, second = given["imm0"], given["imm1"]
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.dtype != second.dtype:
        yield (
            f"takes imm0 and imm1 of one type, and these are {first.dtype.name} and "
            f"{second.dtype.name}; convert one of them with nl.copy"
        )


def _dropout(given: Arguments) -> Iterator[str]:
    prob, data = given["prob"], given["data"]
    is_other = isinstance(prob, Tensor) and prob.dtype.name != "float32"
    if is_other and isinstance(data.dtype, Integer):
        yield f"takes a prob of float32 for {data.dtype.name}; convert it with nl.copy"


_HALF_WORD_BITS = 16
_SIXTEEN, _MOST_INDICES = 16, 128


def _transpose(given: Arguments) -> Iterator[str]:
    """The limits of an indirect transpose, the rows of whose source an index chooses."""
    src = given["src"]
    index = getattr(src, "index", None)
    if index is None:
        return
    rows, (first, *others) = src.shape[0], index.shape
    columns = math.prod(others)
    known = f"src is {src.dtype.name}{list(src.shape)}, and its vector_offset "
    known += f"{index.dtype.name}{list(index.shape)}"
    for holds, wanted in (
        (src.dtype.storage_bits == _HALF_WORD_BITS, "elements of 2 bytes"),
        (src.shape[-1] <= _MOST_INDICES, "at most 128 elements in the last dimension"),
        (len(src.shape) < 4 or 1 in src.shape[1:3], "dimension 1 or 2 of size 1, of four"),
        (rows % _SIXTEEN == 0, "rows in sixteens"),
        (len(index.shape) == 2, "indices in two dimensions"),
        (index.dtype.name == "uint32", "indices of uint32"),
        (
            _SIXTEEN <= first <= _MOST_INDICES and first % _SIXTEEN == 0,
            "16 to 128 partitions of indices, in sixteens",
        ),
        (columns == 1 or first == _MOST_INDICES, "several columns of indices in 128 partitions"),
        (first * columns >= rows, "an index for each row"),
    ):
        if not holds:
            yield f"with vector_offset takes {wanted}; {known}"


def _free(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:])


LIMITS: Mapping[str, Check] = {
    "memset": _memset,
    "tensor_copy_predicated": _copy_predicated,
    "dma_copy": _dma_copy,
    "nc_matmul": _matmul,
    "tensor_scalar": _tensor_scalar,
    "activation": _bias,
    "activation_reduce": _bias,
    "activate2": _activate2,
    "dropout": _dropout,
    "dma_transpose": _transpose,
}
"""Function -> what is documented of its arguments."""


def _operands(given: Arguments) -> Iterator[str]:
    is_number = getattr(given["op0"], "name", None) not in {op.value for op in BITVECTOR}
    for field in ("operand0", "operand1"):
        operand = given[field]
        if is_number and isinstance(operand, Tensor) and operand.dtype.name != "float32":
            yield (
                f"{field} of tensor_scalar is {operand.dtype.name}, and arithmetic operators are "
                "documented for operands of float32 alone"
            )


def _reversed(given: Arguments) -> Iterator[str]:
    if given["reverse0"]:
        yield "reverse0 of tensor_scalar_reduce is documented as not supported yet"


NOTED: Mapping[str, Check] = {"tensor_scalar": _operands, "tensor_scalar_reduce": _reversed}
"""Function -> what published kernels do of what is not documented, to be minded."""


def check_limits(trace: Trace, name: str, given: Arguments) -> None:
    """Raises ``UnsupportedProgramError`` for arguments beyond a documented limit, and notes those
    that published kernels give in spite of it."""
    for what in LIMITS[name](given) if name in LIMITS else ():
        raise UnsupportedProgramError(f"{trace.line()}: nki.isa.{name} {what}.")
    for what in NOTED[name](given) if name in NOTED else ():
        trace.advice[trace.line()] = what
