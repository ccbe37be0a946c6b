"""What kernels give as a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.program.element_types import ElementType, element_type_named

DType = Any
"""An `ElementType` such as `nl.float32`, its name, or a dtype of numpy."""


def element_type(dtype: DType) -> ElementType:
    """The type that a kernel means by `dtype`. Raises ``UnknownFormatError``."""
    if hasattr(dtype, "storage_bits"):
        return dtype
    return element_type_named(dtype if isinstance(dtype, str) else np.dtype(dtype).name)
