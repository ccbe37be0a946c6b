"""Operators of PyTorch that torchax lacks, or of which it leaves something out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


OPERATORS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
}
"""A function of torch, and its computation by operators that torchax has."""
