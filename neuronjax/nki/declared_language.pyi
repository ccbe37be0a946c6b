"""The functions and dtypes of `nki.language`, for type checkers.

`python -m tests.nki.declarations` makes this file.
"""

from builtins import range as range
from collections.abc import Sequence

import numpy as np

from neuronjax.nki.constants import MemoryRegion, Operator
from neuronjax.nki.dtypes import DType
from neuronjax.nki.elementwise import Operand
from neuronjax.nki.reductions import Axis
from neuronjax.nki.tensor import Tensor
from neuronjax.program.element_types import ElementType

class Unary(Operator):
    """An operator that is a function of a tile as well."""
    def __call__(self, x: Tensor, dtype: DType = None) -> Tensor: ...

class Binary(Operator):
    """An operator that is a function of two tiles, or of a tile and a number, as well."""
    def __call__(self, x: Operand, y: Operand, dtype: DType = None) -> Tensor: ...

int8: ElementType
int16: ElementType
int32: ElementType
int64: ElementType
uint8: ElementType
uint16: ElementType
uint32: ElementType
uint64: ElementType
float16: ElementType
float32: ElementType
bfloat16: ElementType
tfloat32: ElementType
float8_e3m4: ElementType
float8_e4m3: ElementType
float8_e4m3fn: ElementType
float8_e5m2: ElementType
float8_e8m0fnu: ElementType
float8_e5m2_x4: ElementType
float8_e4m3fn_x4: ElementType
float4_e2m1fn_x4: ElementType
bool_: ElementType
invert: Unary
bitwise_and: Binary
bitwise_or: Binary
bitwise_xor: Binary
left_shift: Binary
right_shift: Binary
add: Binary
subtract: Binary
multiply: Binary
maximum: Binary
minimum: Binary
equal: Binary
not_equal: Binary
greater_equal: Binary
greater: Binary
less_equal: Binary
less: Binary
logical_and: Binary
logical_or: Binary
logical_xor: Binary
power: Binary
abs_max: Binary
abs_min: Binary
abs: Unary
square: Unary
relu: Unary
rsqrt: Unary
reciprocal: Unary
bypass: Operator
copy: Unary
sigmoid: Unary
prelu: Operator
gelu: Unary
gelu_dx: Unary
gelu_apprx_tanh: Unary
gelu_apprx_sigmoid: Unary
gelu_apprx_sigmoid_dx: Unary
silu: Unary
silu_dx: Unary
tanh: Unary
softplus: Unary
mish: Unary
erf: Unary
erf_dx: Unary
exp: Unary
log: Unary
sin: Unary
arctan: Unary
sqrt: Unary
sign: Unary
average: Operator

def divide(x: Operand, y: Operand, dtype: DType = None) -> Tensor:
    """x / y by way of the reciprocal in float32: an error of 2 units in the last place at most."""

def negative(x: Tensor, dtype: DType = None) -> Tensor:
    """-x."""

def logical_not(x: Tensor, dtype: DType = None) -> Tensor:
    """1 where x is 0, and 0 where it is not."""

def cos(x: Tensor, dtype: DType = None) -> Tensor:
    """sin(x + π/2)."""

def tan(x: Tensor, dtype: DType = None) -> Tensor:
    """sin(x) / cos(x)."""

def floor(x: Tensor, dtype: DType = None) -> Tensor:
    """The greatest integer that is not greater than x."""

def ceil(x: Tensor, dtype: DType = None) -> Tensor:
    """The least integer that is not less than x."""

def trunc(x: Tensor, dtype: DType = None) -> Tensor:
    """The integer next to x on the side of zero."""

def where(condition: Tensor, x: Operand, y: Operand, dtype: DType = None) -> Tensor:
    """x where the condition is not 0, else y: tiles or numbers."""

def dropout(x: Tensor, rate: Operand, dtype: DType = None) -> Tensor:
    """x, with elements replaced by zero with the probability `rate`."""

def broadcast_to(x: Tensor, shape: tuple[int, ...], dtype: DType = None) -> Tensor:
    """A view of `x` with free dimensions of size 1 repeated up to `shape`, of the same rank; one
    partition of a tile is copied to others.
    """

def sum(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor: ...
def max(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor: ...
def min(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor: ...
def prod(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor: ...
def all(x: Tensor, axis: Axis, dtype: DType = None) -> Tensor:
    """1 where no element is 0, else 0."""

def mean(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean."""

def var(x: Tensor, axis: Axis, dtype: DType = None, keepdims: bool = False) -> Tensor:
    """The variance about the mean, of all elements; dimensions are kept."""

def softmax(x: Tensor, axis: Axis = -1, dtype: DType = None) -> Tensor:
    """exp(x) / Σ exp(x), computed from the differences to the greatest element."""

def rms_norm(
    x: Tensor,
    w: Tensor,
    axis: Axis,
    n: int,
    epsilon: float = 1e-06,
    dtype: DType = None,
    compute_dtype: DType = None,
) -> Tensor:
    """x / √(Σ x² / n + epsilon) · w."""

def transpose(x: Tensor, dtype: DType = None) -> Tensor:
    """The transpose of a tile [rows, columns], in PSUM."""

def matmul(x: Tensor, y: Tensor, transpose_x: bool = False) -> Tensor:
    """x · y, or xᵀ · y, of tiles in SBUF; float32 in PSUM."""

def gather_flattened(data: Tensor, indices: Tensor, axis: int = 0, dtype: DType = None) -> Tensor:
    """The elements at `indices`, uint32, of every partition, within that partition."""

def expand_dims(x: Tensor, axis: int) -> Tensor:
    """A view of `x` with a new dimension of size 1 before dimension `axis`."""

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

def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of one value."""

def zeros(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of zeros."""

def ones(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of ones."""

def empty_like(
    x: Tensor, dtype: DType = None, buffer: MemoryRegion | str | None = None, name: str = ""
) -> Tensor:
    """A tensor without values of the shape of `x`, by default of its dtype and in its memory."""

def zeros_like(
    x: Tensor, dtype: DType = None, buffer: MemoryRegion | str | None = None, name: str = ""
) -> Tensor:
    """A tile of zeros of the shape of `x`, by default of its dtype and in SBUF."""

def load(src: Tensor, dtype: DType = None) -> Tensor:
    """A tile of SBUF with the values of a tensor in HBM, converted if `dtype` is another."""

def load_transpose2d(src: Tensor, dtype: DType = None) -> Tensor:
    """A tile of SBUF with the transpose of a matrix in HBM."""

def store(dst: Tensor, value: Tensor) -> None:
    """Writes a tile to a tensor in HBM."""

def device_print(print_prefix: str, tensor: Tensor) -> None:
    """Prints the values of a tensor in SBUF or HBM behind a text, each time the kernel gets there.

    UnsupportedProgramError: the text is no string, or the tensor is in PSUM.
    """

def shared_constant(constant: np.ndarray | str) -> Tensor:
    """A tensor in HBM with the values of an array or of a file ``.npy``."""

def shared_identity_matrix(n: int, dtype: DType = "uint8", dst: Tensor | None = None) -> Tensor:
    """The identity [n, n] in SBUF."""

def rand(
    shape: Sequence[int],
    dtype: DType,
    buffer: MemoryRegion | str = MemoryRegion.sbuf,
    name: str = "",
) -> Tensor:
    """A tile of numbers from [0, 1), multiples of 2⁻²⁴ before they are rounded to `dtype`."""

def random_seed(seed: Tensor) -> None:
    """Lets `rand` begin again, from a tile [1, 1] of 32 bits."""
