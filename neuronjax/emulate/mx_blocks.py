"""Quantization to MX blocks as the Vector engine does it: 8 partitions × 4 elements share a scale.

The scale is 2**(floor(log2(amax)) - (Emax - 1)), Emax being the exponent of the largest element
(NKI ISA, quantize_mx). A block of zeros has the smallest scale. For blocks with NaN or infinity,
which AWS does not document, the scale is NaN.
"""

from __future__ import annotations

import numpy as np

from neuronjax.emulate.element_types import numpy_dtype
from neuronjax.machine.specs import MX_BLOCK, MX_WORD
from neuronjax.program.element_types import Packed

Array = np.ndarray
_PARTITIONS = MX_BLOCK // MX_WORD
_BIAS, _NAN = 127, 0xFF


def quantized(x: Array, dtype: Packed) -> tuple[Array, Array]:
    """float32 [P, F] -> words [P, F / 4] and codes of scales [P / 8, F / 4]."""
    partitions, free = x.shape
    blocks = x.reshape(partitions // _PARTITIONS, _PARTITIONS, free // dtype.count, dtype.count)
    greatest = np.abs(blocks).max(axis=(1, 3))
    finite = np.isfinite(greatest)
    _, exponents = np.frexp(np.where(finite, greatest, 0))
    exponents = np.where(greatest > 0, exponents - 1, -_BIAS) - (dtype.element.max_exponent - 1)
    exponents = np.clip(exponents, -_BIAS, _BIAS)
    scale = np.ldexp(1.0, exponents)[:, None, :, None]
    limit = dtype.element.max
    scaled = np.clip(np.where(finite[:, None, :, None], blocks, 0) / scale, -limit, limit)
    elements = scaled.astype(np.float32).astype(numpy_dtype(dtype.element))
    codes = np.where(finite, exponents + _BIAS, _NAN).astype(np.uint8)
    return packed(elements.reshape(partitions, free // dtype.count, dtype.count), dtype), codes


def packed(elements: Array, dtype: Packed) -> Array:
    """Elements [P, F, 4] -> words [P, F], the first in the low bits."""
    word = numpy_dtype(dtype)
    codes = elements.view(np.uint8).astype(word)
    result = np.zeros(codes.shape[:-1], word)
    for place in range(dtype.count):
        result |= codes[..., place] << word.type(dtype.element.bits * place)
    return result
