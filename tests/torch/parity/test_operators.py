"""Operators that torchax lacks, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neuronjax.torch import to_jax


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


def grouped(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [*map(torch.randn, shapes), torch.tensor([3, 3, 12], dtype=torch.int32)]


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "grouped_mm": (lambda a, b, ends: F.grouped_mm(a, b, offs=ends), grouped((12, 16), (3, 16, 8))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), [torch.randn(4, 3, 5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    function, inputs = CASES[name]
    program = to_jax(Called(function), *inputs)
    got = jax.jit(program)(program.state, *(value.numpy() for value in inputs))
    np.testing.assert_allclose(got, function(*inputs), atol=1e-5)
