"""How the work of compiling a kernel grows with its instructions."""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor

MOST_GROWTH = 4.4
"""Calls of Python for four times as many instructions; tiles compared in pairs make it 7.5."""


@nki.jit
def at_one_place(x: Tensor, count: int) -> Tensor:
    """Declares a tile at the same address again and again, as allocators of kernels do."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for column in nl.static_range(count):
        tile = nl.ndarray((16, 1), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
        nisa.dma_copy(tile, x[:, column : column + 1])
        nisa.dma_copy(out[:, column : column + 1], tile)
    return out


def calls(count: int) -> int:
    """The calls of Python while a kernel of so many tiles is timed."""
    made = 0

    def count_calls(frame: FrameType, event: str, argument: object) -> None:
        nonlocal made
        made += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        nki.benchmark(at_one_place, np.zeros((16, count), np.float32), count)
    finally:
        sys.setprofile(before)
    return made


def test_tiles_at_one_place_are_not_compared_with_each_other() -> None:
    calls(10)  # what is cached
    assert calls(800) / calls(200) < MOST_GROWTH
