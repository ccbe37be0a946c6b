"""Kernels of NKI in modules of PyTorch, beside what PyTorch computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import neuronjax
from neuronjax import nki
from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.torch import to_jax


@nki.jit
def scaled_square(x: Tensor, scale: Tensor) -> Tensor:
    """scale * x**2, where x is [128, n] and scale is [1, n]."""
    rows = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    factors = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=x)
    nisa.dma_copy(dst=factors, src=scale.broadcast(0, x.shape[0]))
    nisa.tensor_tensor(dst=rows, data1=rows, data2=rows, op=nl.multiply)
    nisa.tensor_tensor(dst=rows, data1=rows, data2=factors, op=nl.multiply)
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=rows)
    return result


class ScaledSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, factor: int) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        ctx.factor = factor
        return factor * scaled_square(x, scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        of_scale = (ctx.factor * gradient * x * x).sum(0, keepdim=True)
        return 2 * ctx.factor * gradient * scale * x, of_scale, None


class ScaledSquareOfSetup(torch.autograd.Function):
    """The same with the context apart, and a second result of integers."""

    @staticmethod
    def forward(x: torch.Tensor, scale: torch.Tensor, factor: int) -> tuple[torch.Tensor, ...]:
        return factor * scaled_square(x, scale), x.argmax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.x, ctx.scale, ctx.factor = inputs
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        of_scale = (ctx.factor * gradient * ctx.x * ctx.x).sum(0, keepdim=True)
        return 2 * ctx.factor * gradient * ctx.scale * ctx.x, of_scale, None


class Layer(nn.Module):
    """A kernel between two products, its scale a parameter."""

    def __init__(self, function: Any, *more: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(64, 96)
        self.scale = nn.Parameter(torch.randn(1, 96))
        self.down = nn.Linear(96, 8)
        self.function, self.more = function, more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.function(self.up(x), self.scale, *self.more)
        return self.down(result[0] if isinstance(result, tuple) else result)


X = torch.randn(128, 64, generator=torch.Generator().manual_seed(1))


def assert_close(got: Any, want: torch.Tensor) -> None:
    expected = want.detach().numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5 * max(1, abs(expected).max()))


def test_values_and_tools() -> None:
    module = Layer(scaled_square)
    program = to_jax(module, X)
    plain = Layer(lambda x, scale: scale * x * x)
    assert_close(jax.jit(program)(program.state, X.numpy()), plain(X))
    estimate = neuronjax.estimate(module, X)
    lines = {kernel.source for kernel in estimate.kernels if "scaled_square" in kernel.operations}
    code = scaled_square.function.__code__
    file, begin = code.co_filename, code.co_firstlineno
    assert lines
    assert lines <= {f"{file}:{line}" for line in range(begin, begin + 12)}
    with pytest.raises(KernelError, match="scaled_square"):
        neuronjax.estimate(Layer(lambda x, scale: scaled_square(x)), X)


@pytest.mark.parametrize("function", [ScaledSquare, ScaledSquareOfSetup])
def test_gradients_are_those_of_the_function(function: type[torch.autograd.Function]) -> None:
    module = Layer(function.apply, 3)
    program = to_jax(module, X)

    def loss(state: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(program(state, x) ** 2)

    got = jax.jit(jax.grad(loss))(program.state, X.numpy())
    plain = Layer(lambda x, scale: 3 * scale * x * x)
    (plain(X) ** 2).mean().backward()
    for name, value in plain.named_parameters():
        assert_close(got.parameters[name], value.grad)


def test_functions_that_write_to_their_inputs() -> None:
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(scale)

    with pytest.raises(UnsupportedProgramError, match="in place"):
        neuronjax.estimate(Layer(InPlace.apply), X)
