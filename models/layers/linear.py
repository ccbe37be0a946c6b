"""Linear map between tensors of any rank."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.layers.fp8 import fp8_tensordot
from models.layers.low_rank import LowRank


class Linear(nnx.Module):
    """y[..., *out_axes] = x[..., *in_axes] · kernel[*in_axes, *out_axes] (+ bias[*out_axes]).

    Kernel and bias are stored in `param_dtype` and used in the dtype of `x`; the kernel's values
    are drawn from a normal distribution with standard deviation `stddev`, the bias is zero.
    `matmul_dtype`, None at first, may name an FP8 dtype to multiply in; `lora`, None at first, may
    be an adapter, whose result is added.
    """

    matmul_dtype: str | None
    lora: LowRank | None

    def __init__(
        self,
        in_axes: Sequence[int],
        out_axes: Sequence[int],
        *,
        bias: bool = False,
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_in_axes = len(in_axes)
        self.matmul_dtype = None
        self.lora = nnx.data(None)
        self.kernel = nnx.Param(
            stddev * jax.random.normal(rngs.params(), (*in_axes, *out_axes), param_dtype)
        )
        self.bias = nnx.Param(jnp.zeros(tuple(out_axes), param_dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...].astype(x.dtype)
        if self.matmul_dtype is None:
            y = jnp.tensordot(x, kernel, axes=self.num_in_axes)
        else:
            y = fp8_tensordot(x, kernel, self.num_in_axes, self.matmul_dtype)
        if self.lora is not None and self.lora.enabled:
            y = y + self.lora(x)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


def multiply_in(model: nnx.Module, dtype: str) -> None:
    """Lets all linear maps of a model multiply in an FP8 dtype."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Linear):
            module.matmul_dtype = dtype
