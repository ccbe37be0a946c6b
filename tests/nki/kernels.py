"""What the kernels of the tests share."""

from __future__ import annotations

from typing import Any

from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor


def tile(shape: tuple[int, ...], dtype: Any = nl.float32, buffer: Any = nl.sbuf) -> Tensor:
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def loaded(x: Tensor) -> Tensor:
    on_chip = tile(x.shape, x.dtype)
    nisa.dma_copy(dst=on_chip, src=x)
    return on_chip


def stored(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
