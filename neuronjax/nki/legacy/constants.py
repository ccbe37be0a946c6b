"""`neuronxcc.nki.language.constants`."""

from __future__ import annotations

from neuronjax.nki.dtypes import DType, element_type
from neuronjax.program.element_types import bytes_of


def sizeinbytes(dtype: DType) -> int:
    """Bytes of an element."""
    return bytes_of(element_type(dtype))
