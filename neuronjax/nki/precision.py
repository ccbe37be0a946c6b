"""Programs that round nothing to BF16 or FP8, as in the Neuron SDK's simulator with
NKI_PRECISE_FP=0.

Tensors that a kernel declares in these formats hold FP32 instead. As they take more memory than the
chip has for them, each has memory of its own. Float16 stays as it is.

Source: Neuron docs, "NKI CPU simulator", precise floating-point mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.errors import KernelError
from neuronjax.formats import (
    BFLOAT16,
    FLOAT8_E3M4,
    FLOAT8_E4M3,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT32,
    Format,
)
from neuronjax.lower.write.rebuild import with_buffers
from neuronjax.program.element_types import ElementType
from neuronjax.program.operand import Buffer
from neuronjax.program.program import Program
from neuronjax.program.user_lines import lines_by_path
from neuronjax.program.walk import buffers, instructions, kernels

_NARROW: tuple[Format, ...] = (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E3M4,
)
_NARROW_DTYPES = frozenset(numpy_dtype(form) for form in _NARROW)


def widened(program: Program) -> Program:
    """The program with FP32 in the place of BF16 and FP8.

    KernelError: bits of such a number are read as another type.
    """
    _check_views(program)
    outer = {buffer.name: _wide(buffer) for buffer in program.buffers}
    tiles = {
        id(kernel): {buffer.name: _wide(buffer) for buffer in kernel.buffers}
        for _, kernel in kernels(program)
    }
    return with_buffers(program, outer, tiles)


def widened_arrays(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays that a widened program takes: narrow types as float32."""
    return [
        array.astype(np.float32) if array.dtype in _NARROW_DTYPES else array for array in arrays
    ]


def _wide(buffer: Buffer) -> Buffer:
    dtype, data = buffer.dtype, buffer.data
    if dtype in _NARROW:
        dtype = FLOAT32
        if data is not None:
            data = np.frombuffer(data, numpy_dtype(buffer.dtype)).astype(np.float32).tobytes()
    return dataclasses.replace(buffer, dtype=dtype, data=data, address=None, slot_stride=None)


def _check_views(program: Program) -> None:
    for what, held, seen in _views(program):
        if held != seen and (held in _NARROW or seen in _NARROW):
            raise KernelError(
                f"{what} holds {held.name} and is read or written as {seen.name}; without precise "
                f"floating point, {(held if held in _NARROW else seen).name} is stored as float32, "
                "which has other bits. Run it with precise_fp=True (NKI_PRECISE_FP=1)."
            )


def _views(program: Program) -> Iterator[tuple[str, ElementType, ElementType]]:
    """Where a type is read as another: line or tensor, the type held, and the one seen."""
    lines = lines_by_path(program)
    for place, instruction in instructions(program):
        for access in instruction.accesses():
            line = lines.get(place.path, place.path)
            yield f"{line}: {access.buffer.name}", access.buffer.dtype, access.element_type
    dtypes = {buffer.name: buffer.dtype for _, buffer in buffers(program)}
    for alias in program.aliases:
        if alias.buffer in dtypes and alias.of in dtypes:
            yield alias.of, dtypes[alias.of], dtypes[alias.buffer]
