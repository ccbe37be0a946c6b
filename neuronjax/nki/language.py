"""`nki.language`: memories, dtypes, operators and tensors of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.nki.trace import Tensor, current, whole
from neuronjax.program.element_types import ElementType, element_type_named
from neuronjax.program.operand import Kind, Memory
from neuronjax.program.operators import AluOp

sbuf, psum, shared_hbm = Memory.SBUF, Memory.PSUM, Memory.HBM
float32, bfloat16, float16 = map(element_type_named, ("float32", "bfloat16", "float16"))
add, subtract, multiply = AluOp.ADD, AluOp.SUBTRACT, AluOp.MULTIPLY
maximum, minimum = AluOp.MAXIMUM, AluOp.MINIMUM
affine_range = sequential_range = static_range = range


def ndarray(shape: Sequence[int], dtype: ElementType, buffer: Memory = sbuf) -> Tensor:
    """A tensor without values, in SBUF, PSUM or HBM; those in HBM are what a kernel may return."""
    kind = Kind.RESULT if buffer is Memory.HBM else Kind.SCRATCH
    return whole(current().buffer(buffer, dtype, tuple(shape), kind))
