"""Element types of a buffer: number formats, integers, and words of four packed MX elements.

All have a `name` and `storage_bits`, the bits that one element takes in memory. Names are those of
`nki.language`; as `bool_` is stored as uint8 there, it is not a type of its own here either.

Source: Neuron docs, "NKI API common fields: supported data types".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronjax.errors import UnknownFormatError
from neuronjax.formats import FLOAT4_E2M1FN, FLOAT8_E4M3FN, FLOAT8_E5M2, FORMATS, Format, equals


@dataclass(frozen=True, slots=True)
class Integer:
    """A two's-complement or unsigned integer."""

    name: str
    storage_bits: int
    signed: bool

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """Whether it is the other one, or what that stands for: a name, or a type of numpy."""
        return self is other or equals(self, other)

    def __hash__(self) -> int:
        return hash(self.dtype)  # numpy's dtype equals it

    @property
    def dtype(self) -> np.dtype:
        """The element type of numpy."""
        return np.dtype(self.name)


@dataclass(frozen=True, slots=True)
class Packed:
    """A word of `count` elements that lie 128 apart along the contraction (`nc_matmul_mx`)."""

    name: str
    element: Format
    count: int = 4

    def __eq__(self, other: object) -> bool:
        """Whether it is the other one, or what that stands for: its name."""
        return self is other or equals(self, other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype:
        """The element type of numpy: a word."""
        return np.dtype(f"uint{self.storage_bits}")

    @property
    def storage_bits(self) -> int:
        """Bits of the word: 32 of FP8, 16 of FP4."""
        return self.count * self.element.bits


ElementType = Format | Integer | Packed

INTEGERS: dict[str, Integer] = {
    f"{prefix}int{bits}": Integer(f"{prefix}int{bits}", bits, not prefix)
    for bits in (8, 16, 32, 64)
    for prefix in ("", "u")
}
"""Name -> integer type."""

PACKED: dict[str, Packed] = {
    f"{element.name}_x4": Packed(f"{element.name}_x4", element)
    for element in (FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT4_E2M1FN)
}
"""Name -> packed type."""

ELEMENT_TYPES: dict[str, ElementType] = {**FORMATS, **INTEGERS, **PACKED}
"""Name -> element type."""


def element_type_named(name: str) -> ElementType:
    """The element type of that name, such as ``"uint16"``. Raises ``UnknownFormatError``."""
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        raise UnknownFormatError(
            f"{name!r} is not an element type of a NeuronCore; there are"
            f" {', '.join(ELEMENT_TYPES)}."
        ) from None


def bytes_of(dtype: ElementType) -> int:
    """Bytes of one element in memory; every type takes whole bytes."""
    return dtype.storage_bits // 8
