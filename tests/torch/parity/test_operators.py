"""Operators that torchax lacks, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers.integrations.moe  # noqa: F401 — registers an operator
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


def attention(groups: int = 1) -> list[torch.Tensor]:
    """Queries, keys and values, with as many query heads for each key head."""
    return [torch.randn(2, 2 * groups, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)]


ATTEND = F.scaled_dot_product_attention
SEEN = torch.rand(2, 1, 5, 7) < 0.7
SEEN[..., 0] = True


HALVES = torch.ones(2, dtype=torch.int32)


def _checked(x: torch.Tensor, holds: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(holds)
    return x


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "grouped_mm": (lambda a, b, ends: F.grouped_mm(a, b, offs=ends), grouped((12, 16), (3, 16, 8))),
    "attention": (ATTEND, attention()),
    "attention_causal": (lambda q, k, v: ATTEND(q, k, v, is_causal=True, scale=0.3), attention()),
    "attention_masked": (ATTEND, [*attention(), SEEN]),
    "attention_biased": (ATTEND, [*attention(), torch.randn(2, 2, 5, 7)]),
    "attention_grouped": (
        lambda q, k, v, mask: ATTEND(q, k, v, mask, enable_gqa=True),
        [*attention(3), torch.randn(2, 6, 5, 7)],
    ),
    "attention_of_one_head": (ATTEND, [*map(torch.randn, [(5, 8), (7, 8), (7, 8)])]),
    "embedding": (lambda w, x: F.embedding(x, w), [torch.randn(9, 4), torch.tensor([[0, 8, 3]])]),
    "index_of_view": (lambda x: x[:, 1:][:, torch.tensor([2, 0])], [torch.randn(3, 5)]),
    "copy_of_view": (lambda x: torch.zeros(3, 4).to(x.device).copy_(x[:, 1:]), [torch.randn(3, 5)]),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, (4, 5), w.bfloat16(), eps=1e-3),
        [(10 + torch.randn(3, 4, 5)).bfloat16(), torch.randn(4, 5)],
    ),
    "type_as": (lambda x, y: x[1:].type_as(y) + x.type_as(y)[1:], [10 * torch.randn(3), HALVES]),
    "vmap": (
        torch.vmap(lambda x: torch.div(x, 3, rounding_mode="trunc")),
        [torch.arange(8)],
    ),
    "sums": (
        lambda x: torch.addmm(x, x, x, beta=2) - torch.add(x, 1, alpha=3) + torch.tensor(2.0) + 1,
        [torch.randn(4, 4)],
    ),
    "arange": (
        lambda x: x[0] + torch.arange(end=5, device=x.device) * torch.arange(2, 7, device=x.device),
        [torch.randn(3, 5)],
    ),
    "check of values": (lambda x: _checked(x, (x > 0).all()), [torch.rand(3, 5) + 1]),
    "grouped_mm of transformers": (
        lambda a, b, ends: torch.ops.transformers.grouped_mm_fallback(a, b, offs=ends),
        grouped((12, 16), (3, 16, 8)),
    ),
    "index_copy": (
        lambda x, y: (x + 0).index_copy_(-2, torch.arange(1) + 3, y),
        [torch.randn(2, 5, 3), torch.randn(2, 1, 3)],
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), [torch.randn(2, 3, 4, 5)]),
    "nearest of a size": (lambda x: F.interpolate(x, size=(8, 7)), [torch.randn(2, 3, 4, 5)]),
    "nearest of a scale": (lambda x: F.interpolate(x, scale_factor=1.7), [torch.randn(2, 3, 9)]),
    "linear": (
        lambda x, w, b: F.linear(x, weight=w, bias=b),
        [*map(torch.randn, [(2, 5, 8), (3, 8), (3,)])],
    ),
    "power": (lambda x: x**2 + x.pow(0.5) + x.pow(-1), [torch.rand(5) + 1]),
    "in_place": (lambda x: (2 * x).round_().abs_()[:, 1:].neg_(), [torch.randn(3, 5)]),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), [torch.randn(4, 3, 5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    function, inputs = CASES[name]
    program = to_jax(Called(function), *inputs)
    got = jax.jit(program)(program.state, *program.arrays(inputs))
    np.testing.assert_allclose(got, function(*inputs).float(), atol=1e-5)
