"""Number formats as records: how many bits, which codes are special, and the limits that follow.

A format says what its codes mean, in exact arithmetic; `rounding` says how a value becomes one.
Names are those of numpy, ml_dtypes and NKI (`nki.language`). Which formats an engine takes is a
fact of `machine` (`TensorEngineSpec.rates`), under the same names; packed operands of four elements
end in `_x4` there.

Sources: IEEE 754-2019 (float32, float16); OCP 8-bit Floating Point Specification 1.0
(float8_e4m3fn, float8_e5m2); OCP Microscaling Formats 1.0 (float4_e2m1fn, float8_e8m0fnu, blocks);
Neuron docs, "Data types" (bfloat16, tfloat32, and the configurable FP8 e5m2, e4m3, e3m4). The
adjustable exponent bias of the configurable FP8 is documented without a value: the standard bias
stands here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from neuronjax.errors import UnknownFormatError

EXACT_INTEGERS = 1 << 24
"""FP32 counts to this number exactly, and so do sums of integers that engines add up."""


class Specials(enum.Enum):
    """Which codes are not numbers."""

    IEEE = "ieee"
    """All exponent bits set: infinity if the mantissa is zero, NaN otherwise."""
    NAN_ONLY = "nan only"
    """All exponent and mantissa bits set: NaN. There is no infinity."""
    NONE = "none"
    """Every code is a number."""


class Named(Protocol):
    """A type of elements."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> np.dtype | None: ...


def equals(own: Named, other: object) -> bool:
    """Whether a type is the other one, a record of the same class, or what that stands for: a name,
    or a type of numpy."""
    if type(other) is type(own):
        fields = own.__dataclass_fields__  # type: ignore[attr-defined]
        return all(getattr(own, name) == getattr(other, name) for name in fields)
    if isinstance(other, str):
        return own.name == other
    if isinstance(other, type) and issubclass(other, np.generic):
        return own.dtype is not None and own.dtype == other
    return NotImplemented


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A binary floating-point format: sign, exponent and mantissa bits from high to low.

    A code with exponent field e and mantissa field m is (1 + m / 2**mantissa_bits) * 2**(e - bias);
    with e = 0 it is the subnormal m / 2**mantissa_bits * 2**(1 - bias), if `has_zero`.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    #: What is subtracted from the exponent field.
    bias: int
    specials: Specials = Specials.IEEE
    signed: bool = True
    #: Whether exponent field 0 holds zero and the subnormals; else it is an exponent as any other.
    has_zero: bool = True
    #: Bits that an unpacked element takes in memory.
    storage_bits: int
    #: Element type of numpy; None: values of the format travel as float32.
    dtype: np.dtype | None
    #: Element type of StableHLO; None: as above.
    element_type: str | None

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """Whether it is the other one, or what that stands for: a name, or a type of numpy."""
        return self is other or equals(self, other)

    def __hash__(self) -> int:
        return hash(self.name if self.dtype is None else self.dtype)  # numpy's dtype equals it

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def codes(self) -> int:
        """Number of codes, NaN and infinity among them."""
        return 1 << self.bits

    @property
    def has_infinity(self) -> bool:
        return self.specials is Specials.IEEE

    @property
    def has_nan(self) -> bool:
        return self.specials is not Specials.NONE

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.decode(self._largest_code)

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value: max = 1.… * 2**max_exponent. Emax in OCP MX."""
        return (self._largest_code >> self.mantissa_bits) - self.bias

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value."""
        return int(self.has_zero) - self.bias

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value with an implicit leading one."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value; the smallest normal one if there are no subnormals."""
        return self.decode(1) if self.has_zero else self.smallest_normal

    @property
    def epsilon(self) -> float:
        """The step from 1 to the next larger value."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def _largest_code(self) -> int:
        """Code of `max`: it lies right below the first special code."""
        ones = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        above = {
            Specials.IEEE: 1 << self.mantissa_bits,
            Specials.NAN_ONLY: 1,
            Specials.NONE: 0,
        }
        return ones - above[self.specials]

    def decode(self, code: int) -> float:
        """What `code` stands for, exactly.

        Raises:
          ValueError: there is no such code.
        """
        if not 0 <= code < self.codes:
            raise ValueError(f"{self.name} has the codes 0 to {self.codes - 1}, not {code}")
        ones = 1 << (self.exponent_bits + self.mantissa_bits)
        sign = -1.0 if code >= ones else 1.0
        magnitude = code % ones
        if magnitude > self._largest_code:
            infinite = self.has_infinity and magnitude == self._largest_code + 1
            return math.copysign(math.inf if infinite else math.nan, sign)
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if exponent or not self.has_zero:
            mantissa += 1 << self.mantissa_bits
        power = max(exponent - self.bias, self.min_exponent) - self.mantissa_bits
        return sign * math.ldexp(mantissa, power)


def _known(dtype: Any, element_type: str, **others: Any) -> Format:
    """The format of a type of numpy or ml_dtypes, with what those do not say of it."""
    known = np.dtype(dtype)
    info = ml_dtypes.finfo(known)
    return Format(
        name=known.name, exponent_bits=info.nexp, mantissa_bits=info.nmant,
        bias=(1 << info.nexp - 1) - 1, storage_bits=8 * known.itemsize, dtype=known,
        element_type=element_type, **others,
    )  # fmt: skip


FLOAT32 = _known(np.float32, "f32")
TFLOAT32 = Format(
    name="tfloat32", exponent_bits=8, mantissa_bits=10, bias=127, storage_bits=32, dtype=None,
    element_type=None,
)  # fmt: skip
BFLOAT16 = _known(ml_dtypes.bfloat16, "bf16")
FLOAT16 = _known(np.float16, "f16")
FLOAT8_E4M3 = _known(ml_dtypes.float8_e4m3, "f8E4M3")
FLOAT8_E4M3FN = _known(ml_dtypes.float8_e4m3fn, "f8E4M3FN", specials=Specials.NAN_ONLY)
FLOAT8_E5M2 = _known(ml_dtypes.float8_e5m2, "f8E5M2")
FLOAT8_E3M4 = _known(ml_dtypes.float8_e3m4, "f8E3M4")
FLOAT8_E8M0FNU = _known(
    ml_dtypes.float8_e8m0fnu, "f8E8M0FNU", specials=Specials.NAN_ONLY, signed=False, has_zero=False
)
FLOAT4_E2M1FN = _known(ml_dtypes.float4_e2m1fn, "f4E2M1FN", specials=Specials.NONE)

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        FLOAT32, TFLOAT32, BFLOAT16, FLOAT16,
        FLOAT8_E4M3, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E3M4, FLOAT8_E8M0FNU, FLOAT4_E2M1FN,
    )
}  # fmt: skip
"""Name -> format."""

_BY_DTYPE = {form.dtype: form for form in FORMATS.values() if form.dtype is not None}
_BY_ELEMENT_TYPE = {form.element_type: form for form in FORMATS.values() if form.element_type}


@dataclass(frozen=True, kw_only=True, slots=True)
class MXFormat:
    """Blocks of elements that share a scale: value = scale * element (OCP Microscaling 1.0)."""

    name: str
    element: Format
    block: int = 32
    scale: Format = FLOAT8_E8M0FNU

    @property
    def block_bits(self) -> int:
        """Bits of a packed block with its scale."""
        return self.block * self.element.bits + self.scale.bits


MX_FORMATS: dict[str, MXFormat] = {
    mx.element.name: mx
    for mx in (
        MXFormat(name="mxfp8_e4m3", element=FLOAT8_E4M3FN),
        MXFormat(name="mxfp8_e5m2", element=FLOAT8_E5M2),
        MXFormat(name="mxfp4_e2m1", element=FLOAT4_E2M1FN),
    )
}
"""Name of the element format -> the MX format."""


def format_named(name: str) -> Format:
    """The format of that name, such as ``"float8_e4m3"``. Raises ``UnknownFormatError``."""
    try:
        return FORMATS[name]
    except KeyError:
        raise _unknown(f"number format {name!r}", FORMATS) from None


def format_of(dtype: np.typing.DTypeLike) -> Format:
    """The format of a numpy dtype, a scalar type or its name. Raises ``UnknownFormatError``."""
    try:
        return _BY_DTYPE[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise _unknown(f"dtype {dtype!r}", (str(known) for known in _BY_DTYPE)) from None


def format_of_element_type(element_type: str) -> Format:
    """The format of a StableHLO element type, such as ``"f8E4M3FN"``.

    Raises:
      UnknownFormatError: it is not a floating-point type of the chips.
    """
    try:
        return _BY_ELEMENT_TYPE[element_type]
    except KeyError:
        raise _unknown(f"StableHLO element type {element_type!r}", _BY_ELEMENT_TYPE) from None


def _unknown(what: str, known: Iterable[str | None]) -> UnknownFormatError:
    return UnknownFormatError(
        f"{what} is not a number format of a NeuronCore; choose one of "
        f"{', '.join(map(str, known))}."
    )
