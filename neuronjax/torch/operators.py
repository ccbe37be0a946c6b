"""Operators of PyTorch that torchax lacks, or of which it leaves something out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
from torchax.ops import mappings
from torchax.ops.jtorch import getitem
from torchax.view import View


def _batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Updates the running statistics, in place, as torchax does not."""
    mean, variance = running_mean, running_var
    if training or mean is None or variance is None:
        axes = [axis for axis in range(input.dim()) if axis != 1]
        variance, mean = torch.var_mean(input, axes, correction=0)
    if training and running_mean is not None and running_var is not None:
        count = input.numel() // input.shape[1]
        running_mean.lerp_(mean.detach(), momentum)
        running_var.lerp_(variance.detach() * (count / max(1, count - 1)), momentum)
    shape = [1, -1] + [1] * (input.dim() - 2)
    scale = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * scale
    return input * scale.reshape(shape) + shift.reshape(shape)


def _grouped_mm(
    rows: jax.Array,
    weights: jax.Array,
    offs: jax.Array,
    bias: jax.Array | None = None,
    dtype: object = None,
) -> jax.Array:
    """Multiplies each group of rows, [rows, k], by its own matrix of [groups, k, n]; `offs` are the
    numbers of rows up to the end of each group."""
    sizes = jnp.diff(offs, prepend=0)
    product = jax.lax.ragged_dot(rows, weights, sizes)
    return product if bias is None else product + bias


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention of [..., heads, queries, width], the softmax in FP32 and masked by a choice, as the
    compiler fuses it. A query that may see no key sees all of them, where PyTorch has zeros."""
    weights, total = _attention_weights(query, key, attn_mask, is_causal, scale)
    return _weigh_values(F.dropout(weights, dropout_p) if dropout_p else weights, total, value)


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one of tensors."""

    def of_tensors(*tensors: Any, **keywords: Any) -> Any:
        environment = tensors[0]._env
        arrays, named = environment.t2j_iso((tensors, keywords))
        return environment.j2t_iso(function(*arrays, **named))

    return of_tensors


@_of_arrays
def _attention_weights(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[jax.Array, jax.Array]:
    """[..., heads, queries, keys], and what to divide by: their sums. Where several heads of
    queries share a key, heads are [..., key heads, queries per key head]."""
    dtype = query.dtype
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if is_causal:
        mask = jnp.tri(query.shape[-2], key.shape[-2], dtype=bool)
    is_grouped = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    if is_grouped and mask is not None and mask.ndim > 2:
        mask = _group_heads(mask, key.shape[-3]) if mask.shape[-3] > 1 else mask[..., None, :, :]
    logits = scale * jnp.einsum(
        "...gqd,...kd->...gqk" if is_grouped else "...qd,...kd->...qk",
        _group_heads(query, key.shape[-3]) if is_grouped else query,
        key,
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )
    if mask is not None and mask.dtype == bool:
        logits = jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    elif mask is not None:
        logits = logits + mask
    largest = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(logits - largest)
    return weights.astype(dtype), jnp.sum(weights, axis=-1, keepdims=True)


@_of_arrays
def _weigh_values(weights: jax.Array, total: jax.Array, value: jax.Array) -> jax.Array:
    """Divides after the product, which has fewer numbers than there are weights."""
    is_grouped = weights.ndim > value.ndim
    subscripts = "...gqk,...kd->...gqd" if is_grouped else "...qk,...kd->...qd"
    mixed = (jnp.einsum(subscripts, weights, value) / total).astype(value.dtype)
    return mixed.reshape(*mixed.shape[:-4], -1, *mixed.shape[-2:]) if is_grouped else mixed


def _group_heads(x: jax.Array, groups: int) -> jax.Array:
    """Splits the heads of [..., heads, queries, n] into groups that share a key."""
    return x.reshape(*x.shape[:-3], groups, -1, *x.shape[-2:])


def _layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The layer norm computed in FP32, as PyTorch does of narrower types, and torchax does not."""
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    scale = jax.lax.rsqrt(jnp.mean(centred * centred, axes, keepdims=True) + eps)
    result = centred * scale * (1 if weight is None else weight) + (0 if bias is None else bias)
    return result.astype(x.dtype), mean, scale


def _embedding(rows: jax.Array, weight: jax.Array) -> jax.Array:
    """Rows of a table; torchax has what is out of bounds filled, for which PyTorch is an error."""
    return jnp.take(weight, rows, axis=0, mode="clip")


def _linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Takes its arguments by the names that PyTorch gives them, as torchax does not."""
    product = jnp.einsum("...k,nk->...n", input, weight)
    return product if bias is None else product + bias


def _add(x: Any, y: Any, *, alpha: float = 1) -> jax.Array:
    """A sum without a product with one, which the compiler would not fuse with a matrix product."""
    return _beside(x, y) + _times(_beside(y, x), alpha)


def _subtract(x: Any, y: Any, *, alpha: float = 1) -> jax.Array:
    return _beside(x, y) - _times(_beside(y, x), alpha)


def _beside(number: Any, tensor: Any) -> Any:
    """A float of Python in the type that PyTorch gives it beside a tensor; arrays as they are."""
    if not isinstance(number, float):
        return number
    dtype = jnp.result_type(tensor)
    default = mappings.t2j_dtype(torch.get_default_dtype())
    return jnp.asarray(number, dtype if jnp.issubdtype(dtype, jnp.inexact) else default)


def _add_product(
    x: jax.Array, a: jax.Array, b: jax.Array, *, beta: float = 1, alpha: float = 1
) -> jax.Array:
    return _times(x, beta) + _times(a @ b, alpha)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor


def _arange(
    *bounds: Any,
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    dtype: torch.dtype | None = None,
    **_: object,
) -> jax.Array:
    """Takes its bounds by the names that PyTorch gives them, as torchax does not."""
    known = bounds if end is None else (*(bounds or (start,)), end, step)
    counted: jax.Array = jnp.arange(*known)
    return counted if dtype is None else counted.astype(mappings.t2j_dtype(dtype))


def _nearest(x: jax.Array, sizes: Sequence[int], *scales: float | None) -> jax.Array:
    """Repeats the entries of [rows, channels, *space], which PyTorch's decomposition would pick one
    by one."""
    known = scales or [None for _ in sizes]
    for axis, (size, scale) in enumerate(zip(sizes, known, strict=True), start=2):
        given = x.shape[axis]
        copies = size // given
        if copies * given == size and scale in (None, copies):
            x = jnp.repeat(x, copies, axis)
        else:
            step = given / size if scale is None else 1 / scale
            places = np.floor(np.arange(size, dtype=np.float32) * np.float32(step)).astype(np.int32)
            x = jnp.take(x, np.minimum(places, given - 1), axis)
    return x


def _assume_true(_: torch.Tensor) -> torch.Tensor:
    """Values are not known while a program is traced: checks of them pass."""
    return torch.tensor(True)


def _power(x: jax.Array, exponent: Any) -> jax.Array:
    """A power, which is a product where the exponent is a small whole number in Python."""
    is_product = exponent in (2, 3, 4) if isinstance(exponent, int | float) else False
    return jax.lax.integer_pow(x, int(exponent)) if is_product else jnp.power(x, exponent)


def _item(tensor: Any, index: Any) -> Any:
    """Elements where a tensor says, of a view too; a slice remains a view."""
    is_gather = any(isinstance(leaf, torch.Tensor) for leaf in jax.tree.leaves(index))
    return getitem(tensor.torch() if is_gather and isinstance(tensor, View) else tensor, index)


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Writes a tensor into another; either may be a view. torchax also gives a tensor a new shape
    in this way, as ``transpose_`` does."""
    value = jnp.asarray(target._env.t2j_iso(source), target.jax().dtype)
    if value.ndim == 0 or value.size != target.numel():
        value = jnp.broadcast_to(value, target.shape)
    if isinstance(target, View):
        target.update(value)
    else:
        target.apply_jax_(lambda _: value)
    return target


VIEWS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _item,
    torch.ops.aten.copy_: _copy,
}
"""Functions that take or return views, in place of torchax' own."""

OF_LIBRARIES: dict[str, Callable[..., Any]] = {"transformers::grouped_mm_fallback": _grouped_mm}
"""Operators that libraries register for themselves, by name, and what computes them of arrays."""

ON_TENSORS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.scaled_dot_product_attention: _attention,
    torch.ops.aten._is_all_true: _assume_true,
}
"""Functions and operators of torch, and what computes them of tensors."""

ON_ARRAYS: dict[Any, Callable[..., Any]] = {
    torch.arange: _arange,
    F.embedding: lambda rows, weight, *_, **__: _embedding(rows, weight),
    F.linear: _linear,
    torch.ops.aten._grouped_mm: _grouped_mm,
    torch.ops.aten.add.Scalar: _add,
    torch.ops.aten.add.Tensor: _add,
    torch.ops.aten.addmm: _add_product,
    torch.ops.aten.embedding: lambda weight, rows, *_, **__: _embedding(rows, weight),
    torch.ops.aten.native_layer_norm: _layer_norm,
    torch.ops.aten.pow.Tensor_Scalar: _power,
    torch.ops.aten.sub.Scalar: _subtract,
    torch.ops.aten.sub.Tensor: _subtract,
    torch.ops.aten.upsample_nearest1d.default: _nearest,
    torch.ops.aten.upsample_nearest2d.default: _nearest,
    torch.ops.aten.upsample_nearest3d.default: _nearest,
}
"""Functions and operators of torch, and what computes them of arrays."""
