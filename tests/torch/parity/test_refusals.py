"""What cannot be a program: one error that says where, what was found and what to do."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from transformers import StaticCache

import neuronjax
from neuronjax.errors import ArgumentMismatchError, ConfigurationError, UnsupportedProgramError
from neuronjax.torch import to_jax
from tests.torch.parity.decoders import decoder


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.max() < 9:
            x = 2 * x
        return x


class Item(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.max().item()


class Ragged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


@torch.library.custom_op("parity::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.parity.doubled(x)


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, 0] = 0
        return x.sum(1)


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Linear4bit(nn.Linear):
    """Stands in for the class of bitsandbytes, which needs no graphics card to be refused."""


Linear4bit.__module__ = "bitsandbytes.nn.modules"


def on_cuda(*shape: int) -> torch.Tensor:
    """A tensor that says it lies on a graphics card."""
    with FakeTensorMode():
        return torch.empty(*shape, device="cuda")


def moved() -> nn.Module:
    module = nn.Linear(3, 3)
    module.weight = nn.Parameter(on_cuda(3, 3), requires_grad=False)
    return module


X = torch.ones(2, 3)
LINE = r"test_refusals\.py:\d+: "

CASES: dict[str, tuple[nn.Module, list[object], type[Exception], str]] = {
    "branch": (Branch(), [X], UnsupportedProgramError, f"^0 at .*{LINE}.*if.*Use torch.where"),
    "loop": (Loop(), [X], UnsupportedProgramError, f"^0 at .*{LINE}.*if on a tensor"),
    "item": (Item(), [X], UnsupportedProgramError, f"^0 at .*{LINE}.*item"),
    "shape of values": (Ragged(), [X], UnsupportedProgramError, f"^0 at .*{LINE}"),
    "operator": (Unknown(), [X], UnsupportedProgramError, f"^0 at .*{LINE}.*parity::doubled"),
    "in place": (
        InPlace(),
        [X],
        UnsupportedProgramError,
        "writes to its input input in place.*clone",
    ),
    "arguments": (Plain(), [X, 2], ArgumentMismatchError, "forward.*2 positional"),
    "no input": (Plain(), [], ArgumentMismatchError, "needs input as well"),
    "type": (
        Plain(),
        [X.to(torch.float8_e8m0fnu)],
        ArgumentMismatchError,
        "float8_e8m0fnu, which JAX does not have",
    ),
    "input on cuda": (Plain(), [on_cuda(2, 3)], ArgumentMismatchError, r"lies on cuda.*to\(.cpu"),
    "module on cuda": (moved(), [X], ArgumentMismatchError, r"lies on cuda.*to\(.cpu"),
    "bitsandbytes": (
        Linear4bit(3, 3),
        [X],
        ConfigurationError,
        "0 has a Linear4bit of bitsandbytes.*dequantize",
    ),
}
"""Modules within another, their inputs, and what is raised."""


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be(name: str) -> None:
    module, inputs, kind, said = CASES[name]
    with pytest.raises(kind, match=said):
        neuronjax.estimate(nn.Sequential(module), *inputs)


def test_inputs_of_other_shapes() -> None:
    """What a module can take it takes; else the error has both shapes."""
    program = to_jax(nn.Linear(3, 4), X)
    assert program(program.state, jnp.ones((5, 3))).shape == (5, 4)
    expected = r"Linear cannot take input of float32\[2, 8\] \(in the example: float32\[2, 3\]\)"
    with pytest.raises(ArgumentMismatchError, match=expected):
        program(program.state, jnp.ones((2, 8)))


def test_caches_that_are_returned_may_be_written() -> None:
    module, ids = decoder("llama")
    cache = StaticCache(config=module.config, max_cache_len=16)
    module(input_ids=ids, cache=cache, use_cache=True)
    token = ids[:, :1]
    assert neuronjax.estimate(to_jax(module, input_ids=token, cache=cache, use_cache=True)).step_ns
