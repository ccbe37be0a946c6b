"""Operators of PyTorch that torchax lacks, or of which it leaves something out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F


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
    ends: jax.Array,
    bias: jax.Array | None = None,
    dtype: object = None,
) -> jax.Array:
    """Multiplies each group of rows, [rows, k], by its own matrix of [groups, k, n]; `ends` are the
    numbers of rows up to the end of each group."""
    sizes = jnp.diff(ends, prepend=0)
    product = jax.lax.ragged_dot(rows, weights, sizes)
    return product if bias is None else product + bias


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one of tensors."""

    def of_tensors(*tensors: Any, **keywords: Any) -> Any:
        environment = tensors[0]._env
        arrays, named = environment.t2j_iso((tensors, keywords))
        return environment.j2t_iso(function(*arrays, **named))

    return of_tensors


OPERATORS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    torch.ops.aten._grouped_mm: _of_arrays(_grouped_mm),
}
"""A function or an operator of torch, and what computes it."""
