"""Random loops, whether they stay loops or not, against NumPy in the order of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.program.walk import instructions
from tests.nki.kernels import tile

BLOCKS, ROWS, COLUMNS = 64, 8, 4
X = np.random.default_rng(5).integers(-3, 4, (BLOCKS * ROWS, COLUMNS)).astype(np.float32)

ranges = st.builds(range, st.integers(0, 3), st.integers(4, 9), st.integers(1, 2))
lists = st.lists(st.integers(0, 9), min_size=1, max_size=6)
Numbers = Iterable[int]


@dataclass(frozen=True)
class Loops:
    """A loop within another; the inner one is over `inner`, or as far as the outer one has come.

    Iteration (i, j) reads block a·i + b·j + c and writes another such block. What it reads is added
    to a tile that is older than both loops, than the inner one, or none.
    """

    outer: Numbers
    inner: Numbers | None
    reads: tuple[int, int, int]
    writes: tuple[int, int, int]
    sums: int

    def run(self, at: Callable[[int, int, tuple[int, int, int]], Any], body: Any) -> None:
        """Calls `body` with the blocks of each iteration, and whether a loop has begun."""
        for i in self.outer:
            body.begin(1)
            for j in range(i + 1) if self.inner is None else self.inner:
                body.begin(2)
                body.iteration(at(i, j, self.reads), at(i, j, self.writes))


factors = st.tuples(*[st.integers(0, 3)] * 3)
loops = st.builds(
    Loops,
    outer=ranges | lists,
    inner=ranges | lists | st.none(),
    reads=factors,
    writes=factors,
    sums=st.integers(0, 2),
)


def block(i: int, j: int, factors: tuple[int, int, int]) -> slice:
    number = factors[0] * i + factors[1] * j + factors[2]
    return slice(number * ROWS, number * ROWS + ROWS)


@dataclass
class OnChip:
    """The iterations of a kernel."""

    x: Tensor
    out: Tensor
    level: int
    total: Tensor | None = None

    def begin(self, level: int) -> None:
        if level == self.level:
            self.total = tile((ROWS, COLUMNS))
            nisa.memset(self.total, 0.0)

    def iteration(self, source: slice, target: slice) -> None:
        part = tile((ROWS, COLUMNS))
        nisa.dma_copy(part, self.x[source])
        nisa.tensor_scalar(part, part, nl.multiply, 2.0)
        nisa.tensor_tensor(self.total, self.total, part, nl.add)
        nisa.dma_copy(self.out[target], self.total)


@dataclass
class InNumpy:
    """The same in NumPy."""

    out: np.ndarray
    level: int
    total: np.ndarray | None = None

    def begin(self, level: int) -> None:
        if level == self.level:
            self.total = np.zeros((ROWS, COLUMNS), np.float32)

    def iteration(self, source: slice, target: slice) -> None:
        assert self.total is not None
        self.total += 2 * X[source]
        self.out[target] = self.total


@nki.jit
def kernel(x: Tensor, program: Loops) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    zeros = tile((128, COLUMNS))
    nisa.memset(zeros, 0.0)
    for first in range(0, x.shape[0], 128):
        nisa.dma_copy(out[nl.ds(first, 128)], zeros)
    body = OnChip(x, out, program.sums)
    body.begin(0)
    program.run(block, body)
    return out


@settings(max_examples=60)
@given(loops)
@pytest.mark.filterwarnings("ignore::neuronjax.errors.KernelWarning")
def test_random_loops(program: Loops) -> None:
    expected = InNumpy(np.zeros_like(X), program.sums)
    expected.begin(0)
    program.run(block, expected)
    paths = [place.path for place, _ in instructions(kernel.trace(X, program).program)]
    assert len(set(paths)) == len(paths)
    for order in (None, core.DataflowOrder(seed=1), core.DataflowOrder(seed=2, adversarial=True)):
        np.testing.assert_array_equal(nki.simulate(kernel, order)(X, program), expected.out)
