"""The meanings of the microscaling (MX) custom calls QuantizeMX and ScaledMatmul.

Source of operands, configuration and checks: error pages EVRF036 to EVRF050, EVRF053 to EVRF055,
EVRF057 and EVRF058. Where the pages leave something open:

* A word of packed data holds four neighbours along the quantized dimension, the first in its low
  bits, and a scale belongs to eight neighbouring words: as on the device, where it belongs to 8
  partitions of 4 packed elements, and so that a block is 32 neighbours, as OCP has it. (Kernels
  usually load a tile so that the four lie a quarter of the tile apart. A product of two operands
  does not depend on the order, a block's scale does.)
* The scale is that of the instruction quantize_mx: since SDK 2.31 twice that of OCP (NKI ISA,
  quantize_mx), before that OCP's. The pages call both EMAX.

Only NeuronCore-v4 (Trn3) has MX.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax import mx
from neuronjax.errors import UnsupportedProgramError
from neuronjax.hlo.module import TensorSpec
from neuronjax.legalize.call import Call, Function

ELEMENTS = ("float8_e5m2", "float8_e4m3fn")
"""Element types of packed data; only kernels have FP4."""
WORDS_PER_SCALE = mx.BLOCK // mx.PACKED

_FIRST_CORE = 4
_TWICE_OCP = (2, 31)
"""The SDK since which quantize_mx makes scales twice as large as OCP's."""
_SCALES = (np.dtype(np.uint8), np.dtype(jnp.float8_e8m0fnu))
_WORD = np.dtype(np.uint32)


def _expect_trn3(call: Call) -> None:
    if call.policy.core_version < _FIRST_CORE:
        raise UnsupportedProgramError(
            f"needs NeuronCore-v{_FIRST_CORE}, and {call.policy.chip} has "
            f"NeuronCore-v{call.policy.core_version}; choose a trn3 target with NEURONJAX_TARGET, "
            "or compute with neuronjax.mx in plain JAX"
        )


def _json(call: Call, default: str = "") -> Mapping[str, Any]:
    try:
        config = json.loads(call.config or default)
    except json.JSONDecodeError:
        config = None
    if not isinstance(config, dict):
        raise call.bad_config("a JSON object")
    return config


def quantize(call: Call) -> Function:
    """(input, BF16 or F16) -> (packed data, U32; scales as E8M0 codes, U8).

    backend_config is JSON: ``dtype``, one of ``ELEMENTS``; ``dim``, the last or last but one
    dimension (default 0); ``block_size``, 32; ``scale_method``, "EMAX". Along ``dim`` the data is 4
    times and the scales are 32 times shorter than the input.
    """
    _expect_trn3(call)
    (x,) = call.expect_operands("input")
    config = _json(call)
    rank = len(x.shape)
    element, dim = config.get("dtype"), config.get("dim", 0)
    if x.dtype.name not in ("bfloat16", "float16"):
        raise UnsupportedProgramError(f"quantizes {x.dtype.name}; convert to bfloat16 or float16")
    if element not in ELEMENTS:
        raise call.bad_config(f"a dtype, one of {', '.join(ELEMENTS)},")
    wanted = {-1, -2, rank - 1, rank - 2} & set(range(-rank, rank))
    if not isinstance(dim, int) or dim not in wanted:
        raise call.bad_config("as dim the last dimension or the last but one")
    if (config.get("block_size", mx.BLOCK), config.get("scale_method", "EMAX")) != (32, "EMAX"):
        raise call.bad_config('block_size 32 and scale_method "EMAX"')
    if x.shape[dim] % mx.BLOCK:
        raise UnsupportedProgramError(
            f"quantizes {x.shape[dim]} elements along dimension {dim}, no multiple of {mx.BLOCK}; "
            "pad with zeros"
        )
    if len(call.results) != 2 or call.results[0].dtype != _WORD or _not_scale(call.results[1]):
        raise UnsupportedProgramError(
            "must declare two results, packed data of uint32 and scales of uint8"
        )
    rule: mx.Scale = "neuron" if call.policy.sdk >= _TWICE_OCP else "ocp"

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        elements, scales = mx.quantize(x, element, dim, scale=rule)
        words = mx.pack_x4(mx.deinterleave_x4(elements, dim), dim)
        return words, lax.bitcast_convert_type(scales, call.results[1].dtype)

    return function


def _not_scale(spec: TensorSpec) -> bool:
    return spec.dtype not in _SCALES


@dataclass(frozen=True)
class _Side:
    """A factor of a scaled matmul."""

    name: str
    data: TensorSpec
    scale: TensorSpec
    contracted: int
    batch: tuple[int, ...]
    element: str

    @property
    def packed(self) -> bool:
        return self.data.dtype == _WORD

    @property
    def depth(self) -> int:
        """Elements along the contracted dimension."""
        return self.data.shape[self.contracted] * (mx.PACKED if self.packed else 1)

    def numbers(self, data: jax.Array, scale: jax.Array) -> jax.Array:
        """The values [..., K], contracted elements last.

        BF16 has FP32's range and more digits than FP8; as operands of a matmul these values are not
        subject to ``--auto-cast``, which is about FP32.
        """
        data, scale = (jnp.moveaxis(array, self.contracted, -1) for array in (data, scale))
        if self.packed:
            elements = lax.bitcast_convert_type(data, jnp.dtype(self.element))
            data = elements.reshape(*data.shape[:-1], self.depth)
        scale = lax.bitcast_convert_type(scale, jnp.float8_e8m0fnu)
        return mx.dequantize(data, scale, dtype=jnp.bfloat16)

    @property
    def batch_of_numbers(self) -> tuple[int, ...]:
        """The batch dimensions of `numbers`."""
        return tuple(dim - (dim > self.contracted) for dim in self.batch)


def scaled_matmul(call: Call) -> Function:
    """(lhs, rhs, lhs_scale, rhs_scale) -> their product in F32 or BF16, accumulated in FP32.

    Data is packed, U32, or unpacked FP8, as earlier SDKs took it and JAX writes it for other
    platforms; scales are E8M0 codes. backend_config is JSON with the object
    ``scaled_dot_backend_config``, in which lhs and rhs have ``*_batch_dimensions`` (default none)
    and one of ``*_contracting_dimensions`` (default the last), and which names ``element_dtype``.
    The result's dimensions are those of a dot: batch, rest of lhs, rest of rhs.
    """
    _expect_trn3(call)
    call.expect_operands("lhs", "rhs", "lhs_scale", "rhs_scale")
    outer = _json(call, default="{}")
    config = outer.get("scaled_dot_backend_config", {})
    if not isinstance(config, dict):
        raise call.bad_config("as scaled_dot_backend_config a JSON object")
    lhs, rhs = (_side(call, config, index, name) for index, name in enumerate(("lhs", "rhs")))
    if lhs.depth != rhs.depth or _batch_sizes(lhs) != _batch_sizes(rhs):
        raise UnsupportedProgramError(
            f"multiplies {lhs.data.shape} and {rhs.data.shape} over dimensions {lhs.contracted} "
            f"and {rhs.contracted} with batch dimensions {lhs.batch} and {rhs.batch}; the sizes "
            "must be equal there"
        )
    if call.results[0].dtype.name not in ("float32", "bfloat16"):
        raise UnsupportedProgramError(
            f"gives {call.results[0].dtype.name}; declare a result of float32 or bfloat16"
        )
    contracted = (len(lhs.data.shape) - 1,), (len(rhs.data.shape) - 1,)
    dimensions = contracted, (lhs.batch_of_numbers, rhs.batch_of_numbers)

    def function(
        lhs_data: jax.Array, rhs_data: jax.Array, lhs_scale: jax.Array, rhs_scale: jax.Array
    ) -> jax.Array:
        return lax.dot_general(
            lhs.numbers(lhs_data, lhs_scale),
            rhs.numbers(rhs_data, rhs_scale),
            dimensions,
            preferred_element_type=np.float32,
        )

    return function


def _batch_sizes(side: _Side) -> list[int]:
    return [side.data.shape[dimension] for dimension in side.batch]


def _side(call: Call, config: Mapping[str, Any], index: int, name: str) -> _Side:
    data, scale = call.operands[index], call.operands[index + 2]
    rank = len(data.shape)
    batch = _dimensions(call, config, f"{name}_batch_dimensions", rank, [])
    contracted = _dimensions(call, config, f"{name}_contracting_dimensions", rank, [rank - 1])
    if rank < 2 or len(contracted) != 1 or contracted[0] in batch:
        raise UnsupportedProgramError(
            f"has the {name} of shape {data.shape} with batch dimensions {batch} and contracting "
            f"dimensions {contracted}; it takes two dimensions or more, and contracts one of them "
            "that is not among the batch"
        )
    element = config.get("element_dtype") or ("" if data.dtype == _WORD else data.dtype.name)
    if element not in ELEMENTS or data.dtype.name not in (_WORD.name, element):
        raise UnsupportedProgramError(
            f"has the {name} of type {data.dtype.name} with element_dtype {element!r} in "
            f"backend_config; give uint32 words and one of {', '.join(ELEMENTS)}"
        )
    side = _Side(name, data, scale, contracted[0], batch, element)
    _check_scale(side)
    return side


def _dimensions(
    call: Call, config: Mapping[str, Any], key: str, rank: int, default: list[int]
) -> tuple[int, ...]:
    dimensions = config.get(key) or default
    if not (
        isinstance(dimensions, list)
        and all(isinstance(d, int) and 0 <= d < rank for d in dimensions)
    ):
        raise call.bad_config(f"as {key} a list of dimensions, 0 to {rank - 1},")
    return tuple(dimensions)


def _check_scale(side: _Side) -> None:
    if side.depth % mx.BLOCK:
        raise UnsupportedProgramError(
            f"contracts {side.depth} elements of the {side.name}, no multiple of {mx.BLOCK}; pad "
            "with zeros"
        )
    expected = list(side.data.shape)
    expected[side.contracted] = side.depth // mx.BLOCK
    if _not_scale(side.scale) or list(side.scale.shape) != expected:
        raise UnsupportedProgramError(
            f"has scales of the {side.name} of type {side.scale.dtype.name} and shape "
            f"{side.scale.shape}; they must be uint8 of shape {tuple(expected)}, one for "
            f"{WORDS_PER_SCALE} words"
        )
