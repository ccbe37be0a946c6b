"""Weights that are stored in fewer bits than activations have, and widened as they are used.

A kernel of I = prod(in_axes) times O = prod(out_axes) numbers has one scale for each of its blocks:
kernel[i, o] = scale[i // block_in, o // block_out] · value[i, o]. The whole kernel may be one block
(a scale per tensor), each output (per channel), squares (DeepSeek-AI, "DeepSeek-V3", 2024), or 32
numbers along the inputs whose scale is a power of two (OCP Microscaling Formats 1.0).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.errors import ConfigError
from models.layers.axes import axes_of

FOUR_BITS = "float4_e2m1fn"
"""The format of which two are packed in a byte, the first one in its low half."""

_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # by code of three bits


@dataclass(frozen=True)
class Storage:
    """How the numbers of a kernel are stored. Raises ConfigError for an unknown format."""

    dtype: str  # a key of LARGEST
    block_in: int | None = None  # inputs that share a scale; None = all
    block_out: int | None = 1  # outputs that share a scale; None = all
    exponents: bool = False  # scales are powers of two, kept as uint8 e with 2**(e - 127)

    def __post_init__(self) -> None:
        if self.dtype not in LARGEST:
            raise ConfigError(
                f"weights cannot be stored as {self.dtype!r}; choose one of {', '.join(LARGEST)}"
            )

    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two numbers."""
        return self.dtype == FOUR_BITS

    @property
    def scale_dtype(self) -> str:
        """The dtype of the scales."""
        return "uint8" if self.exponents else "float32"

    def scale_shape(self, inputs: int, outputs: int) -> tuple[int, int]:
        """The shape of the scales of a kernel [inputs, outputs].

        Raises ConfigError if it does not divide into blocks.
        """
        blocks = (self.block_in or inputs, self.block_out or outputs)
        if inputs % blocks[0] or outputs % blocks[1] or (self.is_packed and inputs % 2):
            raise ConfigError(
                f"a kernel of {inputs} inputs and {outputs} outputs cannot be divided into blocks "
                f"of {blocks[0]} x {blocks[1]}. Leave it unquantised, or choose smaller blocks."
            )
        return inputs // blocks[0], outputs // blocks[1]


LARGEST: Mapping[str, float] = {
    "int8": 127.0,  # symmetric: -128 is not used
    "float8_e4m3": 240.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    FOUR_BITS: 6.0,
}
"""Format of the numbers -> its largest."""


class Narrow(nnx.Module):
    """What a narrow kernel needs besides its numbers: scales [..., I, O], or with numbers of four
    bits the numbers too, [..., inputs / 2, *out_axes]; `...` are kernels in a stack. `axes` are
    the names of the kernel's axes."""

    def __init__(
        self,
        storage: Storage,
        shape: Sequence[int],
        num_in_axes: int,
        axes: Sequence[str],
        *,
        stacked: bool = False,
    ) -> None:
        batch = tuple(shape[:1]) if stacked else ()
        in_axes = tuple(shape[len(batch) : len(batch) + num_in_axes])
        out_axes = tuple(shape[len(batch) + num_in_axes :])
        self.storage, self.in_axes, self.out_axes = storage, in_axes, out_axes
        inputs, outputs = math.prod(in_axes), math.prod(out_axes)
        scales = (*batch, *storage.scale_shape(inputs, outputs))
        stack, first = tuple(axes[: len(batch)]), axes[len(batch)]
        results = tuple(axes[len(batch) + num_in_axes :])
        blocks = (
            "blocks" if storage.block_in is None else first,
            "blocks" if storage.block_out is None else results[0],
        )
        self.scale = nnx.Param(jnp.ones(scales, storage.scale_dtype), axes=(*stack, *blocks))
        self.packed = nnx.data(None)
        if storage.is_packed:
            self.packed = nnx.Param(
                jnp.zeros((*batch, inputs // 2, *out_axes), jnp.uint8),
                axes=(*stack, first, *results),
            )

    def multiply(self, x: jax.Array, kernel: jax.Array | None) -> jax.Array:
        """x [*batch, *in_axes] · kernel [*in_axes, *out_axes] -> [*batch, *out_axes] in the dtype
        of x; the kernel is None where numbers are packed."""
        axes = len(self.in_axes)
        scale = self.scale[...]
        if scale.shape[0] > 1:
            return jnp.tensordot(x, self.wide(kernel, x.dtype), axes=axes)
        # Scales of whole columns are left to the results: all formats but INT8 in FP16 are exact.
        # Sums that cores add up are of the dtype of x as in other maps, but for FP16: they may be
        # larger than its largest number before they are scaled.
        summed = jnp.float32 if x.dtype == jnp.float16 else x.dtype
        contracted = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
        y = jax.lax.dot_general(
            x,
            self._numbers(kernel).astype(x.dtype),
            (contracted, ((), ())),
            preferred_element_type=summed,
        )
        return (y * self._of_outputs(_numeric(scale)[0])).astype(x.dtype)

    def wide(self, kernel: jax.Array | None, dtype: DTypeLike) -> jax.Array:
        """The kernel [..., *in_axes, *out_axes] in `dtype`."""
        if self.scale.ndim == 3:
            split = (0, None if kernel is None else 0, None if self.packed is None else 0)
            packed = None if self.packed is None else self.packed[...]
            widen = jax.vmap(lambda s, k, p: self._widen(s, k, p, dtype), in_axes=split)
            stack: jax.Array = widen(self.scale[...], kernel, packed)
            return stack
        packed = None if self.packed is None else self.packed[...]
        return self._widen(self.scale[...], kernel, packed, dtype)

    def _widen(
        self,
        scale: jax.Array,
        kernel: jax.Array | None,
        packed: jax.Array | None,
        dtype: DTypeLike,
    ) -> jax.Array:
        numbers = self._unpack_codes(packed) if kernel is None else kernel
        rows, columns = scale.shape
        blocks = numbers.astype(jnp.float32).reshape(
            rows, math.prod(self.in_axes) // rows, columns, -1
        )
        wide = blocks * _numeric(scale)[:, None, :, None]
        return wide.astype(dtype).reshape(*self.in_axes, *self.out_axes)

    def _numbers(self, kernel: jax.Array | None) -> jax.Array:
        if kernel is not None:
            return kernel
        assert self.packed is not None
        return self._unpack_codes(self.packed[...])

    def _unpack_codes(self, packed: jax.Array | None) -> jax.Array:
        """Codes of four bits as FP32 [*in_axes, *out_axes]: sign, two bits of exponent, one of
        mantissa."""
        assert packed is not None
        codes = jnp.stack([packed & 15, packed >> 4], axis=1).astype(jnp.int32)
        exponent, mantissa = (codes >> 1) & 3, (codes & 1).astype(jnp.float32)
        size = jnp.where(
            exponent == 0,
            0.5 * mantissa,
            (1 + 0.5 * mantissa) * _power_of_two(exponent + 126),
        )
        values = jnp.where(codes >= 8, -size, size)
        return values.reshape(*self.in_axes, *self.out_axes)

    def _of_outputs(self, scale: jax.Array) -> jax.Array:
        """Scales [O] as what multiplies results [..., *out_axes]."""
        repeats = math.prod(self.out_axes) // scale.size
        if scale.size == 1:
            return scale[0]
        return jnp.repeat(scale, repeats).reshape(self.out_axes)


def _numeric(scale: jax.Array) -> jax.Array:
    return _power_of_two(scale.astype(jnp.int32)) if scale.dtype == jnp.uint8 else scale


def _power_of_two(code: jax.Array) -> jax.Array:
    """2**(code - 127) in FP32; 0 for the code 0."""
    return jax.lax.bitcast_convert_type(code << 23, jnp.float32)


def pack(values: np.ndarray, num_in_axes: int) -> np.ndarray:
    """Numbers of four bits [*in_axes, *out_axes] as bytes [inputs / 2, *out_axes]."""
    nearest = np.abs(values.astype(np.float32)[..., None] - _MAGNITUDES).argmin(-1)
    codes = (nearest + 8 * np.signbit(values.astype(np.float32))).astype(np.uint8)
    flat = codes.reshape(-1, *values.shape[num_in_axes:])
    return flat[0::2] | flat[1::2] << 4


class HasNarrow(ABC):
    """Modules with kernels that can be narrow say which these are."""

    @abstractmethod
    def narrow_kernels(self) -> Mapping[str, tuple[int, bool]]:
        """Attribute -> (axes that are contracted, whether the first axis counts kernels)."""


def kernel_paths(model: nnx.Module) -> list[str]:
    """The paths of all kernels that can be narrow."""
    return [path for path, _, _ in _kernels(model)]


def make_narrow(model: nnx.Module, storage: Storage, paths: Collection[str]) -> None:
    """Gives a model room for narrow kernels at these paths, in place of those that it has."""
    for path, module, name in _kernels(model):
        if path not in paths:
            continue
        num_in_axes, stacked = module.narrow_kernels()[name]
        kernel = getattr(module, name)
        axes = axes_of(kernel)
        narrow = Narrow(storage, kernel.shape, num_in_axes, axes, stacked=stacked)
        setattr(module, narrow_name(name), nnx.data(narrow))
        values = (
            None
            if storage.is_packed
            else nnx.Param(jnp.zeros(kernel.shape, storage.dtype), axes=axes)
        )
        setattr(module, name, nnx.data(values) if values is None else values)


def narrow_name(kernel: str) -> str:
    """The attribute, or path, of what belongs to a kernel: `kernel_narrow` for `kernel`."""
    return f"{kernel}_narrow"


def _kernels(model: nnx.Module) -> list[tuple[str, HasNarrow, str]]:
    return [
        (".".join(map(str, (*path, name))), module, name)
        for path, module in nnx.iter_modules(model)
        if isinstance(module, HasNarrow)
        for name in module.narrow_kernels()
    ]
