"""Microscaling (MX) arrays: elements of FP8 or FP4 whose blocks of 32 share a power of two.

An MX array is a pair: elements, and scales of dtype float8_e8m0fnu with one entry for each 32
consecutive elements along one axis, the one that a matmul contracts::

    elements, scales = quantize(x, "float8_e4m3fn")
    y = scaled_matmul(*quantize(x, axis=-1), *quantize(w, axis=-2))

Two rules make a scale from a block's largest magnitude, Emax being the exponent of the largest
element (8 for float8_e4m3fn, 15 for float8_e5m2, 2 for float4_e2m1fn):

* "ocp": ``2**(floor(log2(amax)) - Emax)``. Values that then exceed the largest element saturate
  (OCP Microscaling Formats 1.0, 6.3).
* "neuron": ``2**(floor(log2(amax)) - (Emax - 1))``, FP8 only: what the instruction quantize_mx does
  (NKI ISA). Nothing saturates, and one bit of range stays unused.

A block of zeros has the scale ``2**-127``, the smallest there is. A block with NaN or infinity,
which neither source describes, has the scale NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from neuronjax.errors import BlockShapeError, MXOperandError, UnknownFormatError
from neuronjax.formats import FLOAT8_E8M0FNU, FLOAT32, MX_FORMATS, MXFormat
from neuronjax.machine.specs import MX_BLOCK, MX_WORD

P = ParamSpec("P")
R = TypeVar("R")
Scale = Literal["ocp", "neuron"]

BLOCK = MX_BLOCK
"""Elements that share a scale."""

PACKED = MX_WORD
"""Elements in each word of the packed types ``float8_*_x4`` and ``float4_*_x4``."""

_HEADROOM = {"ocp": 0, "neuron": 1}
"""Rule -> by how much its scale is larger than OCP's, in powers of two."""

_NEURON_ELEMENTS = ("float8_e4m3fn", "float8_e5m2")
_INPUTS = ("float32", "bfloat16", "float16")
_OUTPUTS = ("float32", "bfloat16")
_NAN_CODE = 0xFF
_MAGNITUDE = 0x7FFFFFFF
_WORDS = {8: jnp.uint32, 4: jnp.uint16}
_CODES = {8: jnp.uint8, 4: jnp.uint4}
"""Bits of an element -> type of a word of four, type of a code."""


def _jit(*static_argnames: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function for ``jax.jit``, whose types would forget its signature."""
    return partial(jax.jit, static_argnames=static_argnames, inline=True)


@_jit("element", "axis", "scale")
def quantize(
    x: ArrayLike, element: str = "float8_e4m3fn", axis: int = -1, *, scale: Scale = "ocp"
) -> tuple[jax.Array, jax.Array]:
    """Rounds to the nearest MX array: (elements, scales).

    Args:
      x: float32, bfloat16 or float16.
      element: "float8_e4m3fn", "float8_e5m2" or "float4_e2m1fn".
      axis: along which 32 elements share a scale; its size is a multiple of 32.
      scale: the rule, "ocp" or "neuron".

    Returns:
      Elements of dtype `element` in the shape of `x`, rounded to nearest even; scales of dtype
      float8_e8m0fnu, 32 times shorter along `axis`.

    Raises:
      UnknownFormatError: `element` is not one of the three.
      MXOperandError: the dtype of `x`, or the rule for that element, is not supported.
      BlockShapeError: the axis is missing or does not divide into blocks.
    """
    form = _mx_format(element)
    x = jnp.asarray(x)
    _check_quantize(x, element, scale)
    axis = _axis_of_blocks(x, axis)
    blocks = _in_blocks(x.astype(jnp.float32), axis)
    # The largest exponent field is floor(log2(amax)) + 127; that of infinity and NaN is above all.
    magnitudes = jax.lax.bitcast_convert_type(blocks, jnp.int32) & _MAGNITUDE
    exponents = (magnitudes >> FLOAT32.mantissa_bits).max(axis=axis + 1, keepdims=True)
    codes = jnp.maximum(exponents - form.element.max_exponent + _HEADROOM[scale], 0)
    is_finite = exponents < _NAN_CODE
    limit = form.element.max
    scaled = jnp.clip(_divide(blocks, codes), -limit, limit)
    elements = jnp.where(is_finite, scaled, 0).astype(form.element.dtype)
    codes = jnp.where(is_finite, codes, _NAN_CODE).astype(jnp.uint8).squeeze(axis + 1)
    return elements.reshape(x.shape), jax.lax.bitcast_convert_type(codes, FLOAT8_E8M0FNU.dtype)


@_jit("axis", "dtype")
def dequantize(
    elements: ArrayLike, scales: ArrayLike, axis: int = -1, *, dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """elements * scales, in FP32 and then as `dtype`, in the shape of `elements`.

    Raises:
      UnknownFormatError: the dtype of `elements` is not an MX format.
      MXOperandError: `scales` are not float8_e8m0fnu.
      BlockShapeError: the shape of `scales` is not that of `elements` in blocks along `axis`.
    """
    elements, scales = jnp.asarray(elements), jnp.asarray(scales)
    _mx_format(elements.dtype.name)
    axis = _axis_of_blocks(elements, axis)
    _check_scales(elements, scales, axis)
    blocks = _in_blocks(elements.astype(jnp.float32), axis)
    scaled = times_powers_of_two(blocks, jnp.expand_dims(scales, axis + 1))
    return scaled.reshape(elements.shape).astype(dtype)


@_jit("preferred_element_type")
def scaled_matmul(
    lhs: jax.Array,
    lhs_scale: jax.Array,
    rhs: jax.Array,
    rhs_scale: jax.Array,
    preferred_element_type: DTypeLike = jnp.float32,
) -> jax.Array:
    """Matrix product of two MX arrays, accumulated in FP32.

    Args:
      lhs, lhs_scale: [..., m, k] and [..., m, k / 32].
      rhs, rhs_scale: [..., k, n] and [..., k / 32, n]; elements may be of another type.
      preferred_element_type: float32 or bfloat16, what the chip can write.

    Returns:
      [..., m, n]; leading dimensions broadcast as in `jnp.matmul`.

    Raises:
      MXOperandError: the result type is not supported; and what `dequantize` raises.
      BlockShapeError: an operand is not a matrix, or the contracted dimensions differ.
    """
    name = jnp.dtype(preferred_element_type).name
    if name not in _OUTPUTS:
        raise MXOperandError(
            f"scaled_matmul was asked for {name}; it gives one of {', '.join(_OUTPUTS)}. "
            "Convert the result."
        )
    if min(jnp.ndim(lhs), jnp.ndim(rhs)) < 2 or lhs.shape[-1] != rhs.shape[-2]:
        raise BlockShapeError(
            f"scaled_matmul multiplies [..., m, k] by [..., k, n]; it was given {jnp.shape(lhs)} "
            f"and {jnp.shape(rhs)}."
        )
    product = jnp.matmul(
        dequantize(lhs, lhs_scale, -1),
        dequantize(rhs, rhs_scale, -2),
        precision=jax.lax.Precision.HIGHEST,
    )
    return product.astype(preferred_element_type)


def scaled_matmul_of_rows(
    lhs: jax.Array,
    rhs: jax.Array,
    lhs_scales: jax.Array,
    rhs_scales: jax.Array,
    preferred_element_type: DTypeLike = jnp.float32,
) -> jax.Array:
    """The product of `jax.nn.scaled_matmul`: rows of elements with scales, of any block size.

    Args:
      lhs, rhs: [batch, m, k] and [batch, n, k].
      lhs_scales, rhs_scales: [batch, m, k / a] and [batch, n, k / b]; a and b are the block sizes.
      preferred_element_type: of the result.

    Returns:
      [batch, m, n], multiplied and accumulated in FP32.
    """
    product = jnp.einsum(
        "bmk,bnk->bmn",
        _scaled_rows(lhs, lhs_scales),
        _scaled_rows(rhs, rhs_scales),
        precision=jax.lax.Precision.HIGHEST,
    )
    return product.astype(preferred_element_type)


def times_powers_of_two(x: jax.Array, scales: jax.Array) -> jax.Array:
    """x * scales: FP32 times float8_e8m0fnu, shapes broadcasting; NaN where the scale is."""
    codes = jax.lax.bitcast_convert_type(scales, jnp.uint8).astype(jnp.int32)
    # The smallest scale is subnormal in FP32, which XLA on the CPU takes for zero.
    halved = jnp.where(codes == 0, x * 0.5, x)
    return jnp.where(codes == _NAN_CODE, jnp.nan, halved * _power_of_two(jnp.maximum(codes, 1)))


@_jit("axis")
def interleave_x4(x: jax.Array, axis: int = -1) -> jax.Array:
    """Reorders an axis of size k so that elements k/4 apart become neighbours: 0, k/4, k/2, ….

    A scale of the device belongs to 8 partitions of 4 packed elements. Quantizing after this makes
    those groups: 32 neighbours of the new order.

    Raises:
      BlockShapeError: the size of the axis is not a multiple of 4.
    """
    return _regroup(x, axis, quarters_first=True)


@_jit("axis")
def deinterleave_x4(x: jax.Array, axis: int = -1) -> jax.Array:
    """Undoes `interleave_x4`. Raises as that does."""
    return _regroup(x, axis, quarters_first=False)


@_jit("axis")
def pack_x4(elements: jax.Array, axis: int = -1) -> jax.Array:
    """Packs MX elements into the device's words: word i holds i, i + k/4, i + k/2 and i + 3k/4.

    Args:
      elements: of an MX element type.
      axis: the contracted one, of size k; the device takes up to 512 at once.

    Returns:
      uint32 for FP8, uint16 for FP4, k/4 long along `axis`; the first element is in the low bits
      (Trainium3 architecture guide for NKI, types ``float8_e4m3fn_x4`` and so on).

    Raises:
      UnknownFormatError: the dtype is not an MX format.
      BlockShapeError: k is not a multiple of 4.
    """
    elements = jnp.asarray(elements)
    bits = _mx_format(elements.dtype.name).element.bits
    axis = _axis_of_fours(elements, axis)
    codes = jax.lax.bitcast_convert_type(elements, _CODES[bits]).astype(_WORDS[bits])
    first, *others = jnp.split(codes, PACKED, axis=axis)
    words = first
    for place, quarter in enumerate(others, 1):
        words = words | (quarter << (bits * place))
    return words


@_jit("element", "axis")
def unpack_x4(words: jax.Array, element: str, axis: int = -1) -> jax.Array:
    """Undoes `pack_x4`: elements of dtype `element`, four times as long along `axis`.

    Raises:
      UnknownFormatError: `element` is not an MX format.
      MXOperandError: the words are not of the type for that element.
      BlockShapeError: there is no such axis.
    """
    form = _mx_format(element).element
    words = jnp.asarray(words)
    if words.dtype != _WORDS[form.bits]:
        raise MXOperandError(
            f"four elements of {element} lie in a {jnp.dtype(_WORDS[form.bits]).name}; the words "
            f"are {words.dtype.name}. View them as that."
        )
    axis = _axis(words, axis)
    mask = (1 << form.bits) - 1
    codes = [(words >> (form.bits * place)) & mask for place in range(PACKED)]
    quarters = jnp.concatenate(codes, axis=axis).astype(_CODES[form.bits])
    return jax.lax.bitcast_convert_type(quarters, form.dtype)


def _scaled_rows(rows: jax.Array, scales: jax.Array) -> jax.Array:
    """rows * scales in FP32; the shapes alone tell how long a block is."""
    block = rows.shape[-1] // max(scales.shape[-1], 1)
    blocks = rows.astype(jnp.float32).reshape(*scales.shape, block)
    scales = jnp.expand_dims(scales, -1)
    if scales.dtype == FLOAT8_E8M0FNU.dtype:
        scaled = times_powers_of_two(blocks, scales)
    else:
        scaled = blocks * scales.astype(jnp.float32)
    return scaled.reshape(rows.shape)


def _divide(blocks: jax.Array, codes: jax.Array) -> jax.Array:
    """blocks / 2**(codes - 127) in FP32, where XLA on the CPU would take subnormals for zero."""
    bits = jax.lax.bitcast_convert_type(blocks, jnp.int32)
    magnitudes = bits & _MAGNITUDE
    multiples = jnp.where(bits < 0, -magnitudes, magnitudes).astype(jnp.float32)
    subnormal = multiples * 2.0**-22 * _power_of_two(127 - codes)
    is_subnormal = magnitudes < 1 << FLOAT32.mantissa_bits
    return jnp.where(is_subnormal, subnormal, blocks * _power_of_two(254 - codes))


def _power_of_two(exponent_fields: jax.Array) -> jax.Array:
    """2**(exponent_fields - 127) as FP32; zero where the field is not positive."""
    fields = jnp.maximum(exponent_fields, 0).astype(jnp.int32)
    return jax.lax.bitcast_convert_type(fields << FLOAT32.mantissa_bits, jnp.float32)


def _regroup(x: jax.Array, axis: int, *, quarters_first: bool) -> jax.Array:
    x = jnp.asarray(x)
    axis = _axis_of_fours(x, axis)
    groups = [PACKED, x.shape[axis] // PACKED]
    if not quarters_first:
        groups.reverse()
    split = x.reshape(*x.shape[:axis], *groups, *x.shape[axis + 1 :])
    return jnp.swapaxes(split, axis, axis + 1).reshape(x.shape)


def _in_blocks(x: jax.Array, axis: int) -> jax.Array:
    """[..., k, ...] as [..., k / 32, 32, ...]."""
    return x.reshape(*x.shape[:axis], x.shape[axis] // BLOCK, BLOCK, *x.shape[axis + 1 :])


def _mx_format(element: str) -> MXFormat:
    try:
        return MX_FORMATS[element]
    except KeyError:
        raise UnknownFormatError(
            f"{element!r} is not an element of an MX array; choose one of {', '.join(MX_FORMATS)}."
        ) from None


def _axis(x: jax.Array, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise BlockShapeError(f"axis {axis} was asked for; the array has the shape {x.shape}.")
    return axis % x.ndim


def _axis_of_fours(x: jax.Array, axis: int) -> int:
    axis = _axis(x, axis)
    if x.shape[axis] % PACKED:
        raise BlockShapeError(
            f"{PACKED} elements are packed into a word, but axis {axis} of an array of shape "
            f"{x.shape} has {x.shape[axis]}; pad it with zeros to a multiple of {PACKED}."
        )
    return axis


def _axis_of_blocks(x: jax.Array, axis: int) -> int:
    axis = _axis(x, axis)
    if x.shape[axis] % BLOCK:
        raise BlockShapeError(
            f"{BLOCK} elements share a scale, but axis {axis} of an array of shape {x.shape} has "
            f"{x.shape[axis]}; pad it with zeros to a multiple of {BLOCK}."
        )
    return axis


def _check_quantize(x: jax.Array, element: str, scale: str) -> None:
    if x.dtype.name not in _INPUTS:
        raise MXOperandError(
            f"quantize was given {x.dtype.name}; it takes {', '.join(_INPUTS)}. Convert the array."
        )
    if scale not in _HEADROOM:
        raise MXOperandError(
            f"scale={scale!r} is not a rule for scales; choose one of {', '.join(_HEADROOM)}."
        )
    if scale == "neuron" and element not in _NEURON_ELEMENTS:
        raise MXOperandError(
            f"scale='neuron' is the rule of quantize_mx, which makes {', '.join(_NEURON_ELEMENTS)} "
            f"only; for {element} use scale='ocp'."
        )


def _check_scales(elements: jax.Array, scales: jax.Array, axis: int) -> None:
    if scales.dtype != FLOAT8_E8M0FNU.dtype:
        raise MXOperandError(
            f"scales are {FLOAT8_E8M0FNU.name}, not {scales.dtype.name}; if these are its codes, "
            "use lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu)."
        )
    expected = tuple(size // (BLOCK if i == axis else 1) for i, size in enumerate(elements.shape))
    if scales.shape != expected:
        raise BlockShapeError(
            f"elements of shape {elements.shape} in blocks of {BLOCK} along axis {axis} have "
            f"scales of shape {expected}; these have {scales.shape}."
        )
