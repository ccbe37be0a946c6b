"""Linear map between tensors of any rank."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from models.layers.axes import axes_of, make_bias
from models.layers.dropout import Dropout
from models.layers.fp8 import AmaxHistory
from models.layers.low_rank import LowRank, StackedLowRank
from models.layers.narrow import HasNarrow, Narrow


class Matmul(Protocol):
    """The multiplication of a linear map: a frozen record, such as `fp8.CurrentScaling`."""

    @property
    def history_length(self) -> int:
        """Number of past steps whose largest magnitudes it needs; 0 = none."""
        ...

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: Any) -> jax.Array:
        """x [*batch, *in] · kernel [*in, *out] -> [*batch, *out] in the dtype of x.

        The last `axes` axes of x and the first of kernel are contracted; history is FP32
        [3, history_length], or None.
        """
        ...


class Linear(nnx.Module, HasNarrow):
    """y[..., *out_axes] = x[..., *in_axes] · kernel[*in_axes, *out_axes] (+ bias[*out_axes]).

    Axes are given as names and sizes, in order; see models/sharding.py for the names. Kernel and
    bias are stored in `param_dtype` and used in the dtype of `x`; the kernel's values are drawn
    from a normal distribution with standard deviation `stddev`, the bias is zero. `matmul`, None
    at first, may say how to multiply instead; `lora`, None at first, may be an adapter, whose
    result is added. `kernel_narrow`, None at first, makes it a narrow kernel. `dropout`, None at
    first, drops some of y.
    """

    matmul: Matmul | None
    amax_history: AmaxHistory | None
    lora: LowRank | StackedLowRank | None
    kernel_narrow: Narrow | None
    dropout: Dropout | None

    def __init__(
        self,
        in_axes: Mapping[str, int],
        out_axes: Mapping[str, int],
        *,
        bias: bool = False,
        stddev: float,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_in_axes = len(in_axes)
        self.matmul = None
        self.amax_history = nnx.data(None)
        self.lora = nnx.data(None)
        self.kernel_narrow = nnx.data(None)
        self.dropout = nnx.data(None)
        shape = (*in_axes.values(), *out_axes.values())
        self.kernel = nnx.Param(
            stddev * jax.random.normal(rngs.params(), shape, param_dtype),
            axes=(*in_axes, *out_axes),
        )
        self.bias = make_bias(out_axes, param_dtype) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.kernel_narrow is not None:
            kernel = None if self.kernel is None else self.kernel[...]
            return self._finish_product(self.kernel_narrow.multiply(x, kernel), x)
        kernel = self.kernel[...].astype(x.dtype)
        if self.matmul is None:
            y = jnp.tensordot(x, kernel, axes=self.num_in_axes)
        else:
            history = None if self.amax_history is None else self.amax_history[...]
            y = self.matmul(x, kernel, self.num_in_axes, history)
        return self._finish_product(y, x)

    @property
    def is_plain(self) -> bool:
        """Whether it is the product with its kernel and nothing else."""
        others = self.matmul, self.lora, self.kernel_narrow, self.dropout, self.bias
        return all(other is None for other in others)

    def axes(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """The axes of what it takes and of what it gives, by name and size."""
        sizes = list(zip(axes_of(self.kernel), self.kernel.shape, strict=True))
        return dict(sizes[: self.num_in_axes]), dict(sizes[self.num_in_axes :])

    def narrow_kernels(self) -> Mapping[str, tuple[int, bool]]:
        """The kernel, which may be narrow."""
        return {"kernel": (self.num_in_axes, False)}

    def _finish_product(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """Adds the adapter's result and the bias to the product y of x, and drops some of it."""
        if self.lora is not None and self.lora.enabled:
            y = y + self.lora(x)
        y = y if self.bias is None else y + self.bias[...].astype(x.dtype)
        return y if self.dropout is None else self.dropout(y)


def fused_linear(x: jax.Array, linears: Sequence[Linear]) -> list[jax.Array]:
    """The results of several linear maps of the same x, computed by one product.

    Maps with their own `matmul` or with narrow kernels are computed separately.
    """
    if any(linear.matmul is not None or linear.kernel_narrow is not None for linear in linears):
        return [linear(x) for linear in linears]
    in_axes = linears[0].num_in_axes
    kernels = [linear.kernel[...].astype(x.dtype) for linear in linears]
    flat = [kernel.reshape(*kernel.shape[:in_axes], -1) for kernel in kernels]
    ends = np.cumsum([kernel.shape[-1] for kernel in flat])[:-1]
    product = jnp.tensordot(x, jnp.concatenate(flat, axis=-1), axes=in_axes)
    return [
        linear._finish_product(part.reshape(*part.shape[:-1], *kernel.shape[in_axes:]), x)
        for linear, part, kernel in zip(
            linears, jnp.split(product, ends, axis=-1), kernels, strict=True
        )
    ]


def multiply_in(model: nnx.Module, matmul: Matmul) -> None:
    """Makes all linear maps of a model multiply in this way."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Linear):
            module.matmul = matmul
            if matmul.history_length:
                module.amax_history = AmaxHistory(jnp.zeros((3, matmul.history_length)))
