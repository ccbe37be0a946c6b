"""What kernels give as a dtype."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from neuronjax.errors import UnknownFormatError, quoted
from neuronjax.nki.tracing import current, is_tracing
from neuronjax.program.element_types import INTEGERS, ElementType, Integer, element_type_named

DType: TypeAlias = ElementType | DTypeLike | None
"""An `ElementType` such as `nl.float32`, its name, or a dtype of numpy; None where a function has
one of its own."""

BOOL = Integer("bool", 8, False)
"""Truth values: what kernels call `nl.bool_`. Programs have bytes, of which 0 is false."""


def stored(dtype: ElementType) -> ElementType:
    """What a program has in the place of a kernel's type."""
    return INTEGERS["uint8"] if isinstance(dtype, Integer) and dtype == BOOL else dtype


def element_type(dtype: DType) -> ElementType:
    """The type that a kernel means by `dtype`. ``UnknownFormatError``: there is none."""
    if isinstance(dtype, ElementType):
        return dtype
    place = f"{current().line()}: " if is_tracing() else ""
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        return BOOL if name in ("bool", "bool_") else element_type_named(name)
    except UnknownFormatError as error:
        raise UnknownFormatError(f"{place}{error}") from None
    except TypeError:
        raise UnknownFormatError(
            f"{place}{quoted(dtype)} is no dtype; pass one of nki.language, such as nl.bfloat16."
        ) from None
