"""Tensors of torch as arguments and results of kernels."""

from __future__ import annotations

import pytest

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored

torch = pytest.importorskip("torch", reason="tensors of torch need the extra `parity`")

DTYPES = ["float32", "float16", "bfloat16", "int32", "uint8", "bool", "float8_e4m3fn"]


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_torch(name: str) -> None:
    x = torch.arange(24).reshape(4, 6).to(getattr(torch, name))

    def doubled(x: Tensor, y: Tensor) -> Tensor:
        nisa.dma_copy(y, loaded(x))
        return stored(loaded(x))

    y = torch.zeros_like(x)
    result = nki.simulate(doubled)(x, y)
    for got in (result, y):
        assert got.dtype == x.dtype
        assert torch.equal(got.to(torch.float32), x.to(torch.float32))
    assert torch.equal(nki.jit(lambda x: stored(loaded(x)))(x).float(), x.float())


def test_views_of_torch_and_gradients() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    kernel = nki.simulate(lambda x: stored(loaded(x)))
    assert torch.equal(kernel(x.T), x.T)
    assert torch.equal(kernel(x.clone().requires_grad_()), x)
