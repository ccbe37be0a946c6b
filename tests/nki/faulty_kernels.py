"""Ten kernels for two programs, in each of which ten mistakes can be made, one at a time.

A kernel is a chain of stages. Each stage asks `Mistakes` for what can be got wrong in it: whether a
loop's iterations depend on each other, whether programs wait for each other, where tiles lie. All
arrays are FP32; a program has 128 rows of 64 columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, tile

ROWS, COLUMNS, BLOCK = 128, 64, 16
HALF = ROWS // 2
TILE_BYTES, BANK_BYTES = 4 * COLUMNS, 2048

Place = tuple[str, int]
"""A kind of mistake, and a number."""


@dataclass(frozen=True)
class Mistakes:
    """What is done wrong, and all that could have been."""

    made: Place | None = None
    possible: list[Place] = field(default_factory=list, compare=False)

    def at(self, *places: Place) -> Place | None:
        """The mistake that is made among those that are possible at some place."""
        self.possible.extend(places)
        return self.made if self.made in places else None


def scanned(x: Tensor, op: Any, m: Mistakes, number: int) -> Tensor:
    """Each block of columns becomes what `op` makes of it and all blocks before it."""
    out, so_far = tile(x.shape), tile((ROWS, BLOCK))
    nisa.tensor_copy(so_far, x[:, :BLOCK])
    nisa.tensor_copy(out[:, :BLOCK], so_far)
    over = nl.affine_range if m.at(("affine_range", number)) else nl.sequential_range
    for first in over(BLOCK, COLUMNS, BLOCK):
        columns = nl.ds(first, BLOCK)
        nisa.tensor_tensor(so_far, so_far, x[:, columns], op)
        nisa.tensor_copy(out[:, columns], so_far)
    return out


def exchanged(x: Tensor, op: Any, m: Mistakes, number: int) -> Tensor:
    """The rows of both programs, put together by `op`."""
    between = nl.ndarray((2 * ROWS, COLUMNS), x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    nisa.dma_copy(between[nl.ds(ROWS * me, ROWS)], x)
    if not m.at(("barrier", number)):
        nisa.core_barrier(between, (0, 1))
    both = loaded(between[nl.ds(ROWS * (1 - me), ROWS)])
    nisa.tensor_tensor(both, both, x, op)
    return both


def multiplied(x: Tensor, op: Any, m: Mistakes) -> Tensor:
    """What `op` makes of xᵀ · x and xᵀ · 2x, whose halves are added up in turns in two banks."""
    mistake = m.at(("bank", 0), ("bank", 1))
    second = {None: BANK_BYTES, ("bank", 0): 0, ("bank", 1): TILE_BYTES // 2}[mistake]
    sums, doubled = (
        nl.ndarray((COLUMNS, COLUMNS), nl.float32, nl.psum, address=(0, byte))
        for byte in (0, second)
    )
    twice = tile(x.shape)
    nisa.tensor_scalar(twice, x, nl.multiply, 2.0)
    for half in range(2):
        rows = nl.ds(HALF * half, HALF)
        nisa.nc_matmul(sums, x[rows], x[rows])
        nisa.nc_matmul(doubled, x[rows], twice[rows])
    out, other = tile((COLUMNS, COLUMNS)), tile((COLUMNS, COLUMNS))
    nisa.tensor_copy(out, sums)
    nisa.tensor_copy(other, doubled)
    nisa.tensor_tensor(out, out, other, op)
    return out


def delayed(x: Tensor, op: Any, m: Mistakes) -> Tensor:
    """Each block and the one before it, put together by `op`; two places take turns."""
    mistake = m.at(("scope", 0), ("scope", 1))
    places = 1 if mistake == ("scope", 0) else 2
    out, blocks = tile(x.shape), []
    for number in range(COLUMNS // BLOCK):
        columns = nl.ds(BLOCK * number, BLOCK)
        address = (0, 4096 + number % places * 4 * BLOCK)
        blocks.append(nl.ndarray((ROWS, BLOCK), x.dtype, address=address))
        nisa.tensor_copy(blocks[-1], x[:, columns])
        before = blocks[0 if mistake == ("scope", 1) else max(number - 1, 0)]
        nisa.tensor_tensor(out[:, columns], blocks[-1], before, op)
    return out


def placed(x: Tensor, op: Any, m: Mistakes) -> Tensor:
    """Twice x and half of -x, put together by `op`, in tiles at places by hand."""
    mistake = m.at(("overlap", 0), ("overlap", 1))
    second = {None: TILE_BYTES, ("overlap", 0): 0, ("overlap", 1): TILE_BYTES // 2}[mistake]
    twice, half = (nl.ndarray(x.shape, x.dtype, address=(0, 8192 + byte)) for byte in (0, second))
    nisa.tensor_scalar(twice, x, nl.multiply, 2.0)
    nisa.tensor_scalar(half, x, nl.multiply, -0.5)
    out = tile(x.shape)
    nisa.tensor_tensor(out, twice, half, op)
    return out


def square(x: Tensor, op: Any, m: Mistakes) -> Tensor:
    """The result of `multiplied`, repeated so that there are as many rows as before."""
    product, out = multiplied(x, op, m), tile(x.shape)
    for half in range(2):
        nisa.tensor_copy(out[nl.ds(HALF * half, HALF)], product)
    return out


STAGES: Mapping[str, Callable[..., Tensor]] = {
    "affine_range": scanned,
    "barrier": exchanged,
    "bank": multiplied,
    "scope": delayed,
    "overlap": placed,
}
"""Kind of mistake -> where it is made."""


def lines(kind: str) -> range:
    """The lines of a stage in this file."""
    text, first = inspect.getsourcelines(STAGES[kind])
    return range(first, first + len(text))


Numbers = np.ndarray
OPERATORS: Mapping[Any, Callable[[Numbers, Numbers], Numbers]] = {
    nl.add: np.add,
    nl.subtract: np.subtract,
    nl.maximum: np.maximum,
    nl.minimum: np.minimum,
}

Recipe = tuple[tuple[Callable[..., Tensor], Any], ...]
ADD, SUBTRACT, LARGER, SMALLER = OPERATORS
RECIPES: Mapping[str, Recipe] = {
    "totals": (
        (scanned, ADD), (exchanged, ADD), (square, ADD), (delayed, ADD), (placed, ADD),
        (exchanged, LARGER), (scanned, LARGER),
    ),
    "extremes": (
        (exchanged, LARGER), (scanned, SMALLER), (placed, LARGER), (delayed, SMALLER),
        (square, SUBTRACT), (scanned, LARGER), (exchanged, SMALLER),
    ),
    "differences": (
        (delayed, SUBTRACT), (placed, SUBTRACT), (exchanged, SUBTRACT), (exchanged, LARGER),
        (scanned, LARGER), (scanned, ADD), (square, ADD),
    ),
    "products first": (
        (square, SUBTRACT), (placed, SMALLER), (scanned, SMALLER), (exchanged, ADD),
        (delayed, LARGER), (scanned, ADD), (exchanged, LARGER),
    ),
    "places first": (
        (placed, ADD), (scanned, ADD), (scanned, LARGER), (delayed, ADD), (exchanged, SMALLER),
        (square, LARGER), (exchanged, LARGER),
    ),
    "exchanges last": (
        (scanned, LARGER), (square, ADD), (delayed, LARGER), (placed, LARGER), (scanned, SMALLER),
        (exchanged, SUBTRACT), (exchanged, LARGER),
    ),
    "exchanges first": (
        (exchanged, SUBTRACT), (exchanged, LARGER), (delayed, ADD), (scanned, ADD),
        (placed, SUBTRACT), (square, SMALLER), (scanned, LARGER),
    ),
    "scans first": (
        (scanned, SMALLER), (scanned, ADD), (exchanged, ADD), (placed, ADD), (square, LARGER),
        (exchanged, ADD), (delayed, LARGER),
    ),
    "scans last": (
        (placed, LARGER), (delayed, SMALLER), (exchanged, SMALLER), (square, ADD),
        (exchanged, ADD), (scanned, ADD), (scanned, SMALLER),
    ),
    "in the middle": (
        (delayed, LARGER), (exchanged, ADD), (scanned, SMALLER), (square, SUBTRACT),
        (scanned, LARGER), (exchanged, SMALLER), (placed, SMALLER),
    ),
}  # fmt: skip
"""Ten kernels: stages in turn, with their operators."""
_NUMBERED = (scanned, exchanged)
"""Stages of which a kernel has two."""
_SMALL = 1 / 64


@nki.jit
def kernel(x: Tensor, recipe: Recipe, mistakes: Mistakes) -> Tensor:
    """The stages of a recipe; each works on a fraction of the result before it, lest they grow."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    own = nl.ds(ROWS * nl.program_id(0), ROWS)
    rows = loaded(x[own])
    seen = dict.fromkeys(_NUMBERED, 0)
    for stage, op in recipe:
        less = tile(rows.shape)
        nisa.tensor_scalar(less, rows, nl.multiply, _SMALL)
        if stage in seen:
            rows = stage(less, op, mistakes, seen[stage])
            seen[stage] += 1
        else:
            rows = stage(less, op, mistakes)
    nisa.dma_copy(out[own], rows)
    return out


def expected(x: Numbers, recipe: Recipe) -> Numbers:
    """The same in FP64."""
    rows = x.astype(np.float64)
    for stage, op in recipe:
        rows = _REFERENCES[stage](rows * _SMALL, OPERATORS[op])
    return rows


def _scanned(x: Numbers, op: Any) -> Numbers:
    return op.accumulate(x.reshape(len(x), -1, BLOCK), axis=1).reshape(x.shape)


def _exchanged(x: Numbers, op: Any) -> Numbers:
    return op(np.roll(x, ROWS, axis=0), x)


def _square(x: Numbers, op: Any) -> Numbers:
    products = [rows.T @ rows for rows in np.split(x, 2)]
    return np.concatenate([np.tile(op(p, 2 * p), (2, 1)) for p in products])


def _delayed(x: Numbers, op: Any) -> Numbers:
    before = np.concatenate([x[:, :BLOCK], x[:, :-BLOCK]], axis=1)
    return op(x, before)


def _placed(x: Numbers, op: Any) -> Numbers:
    return op(2 * x, -0.5 * x)


_REFERENCES: Mapping[Callable[..., Tensor], Callable[[Numbers, Any], Numbers]] = {
    scanned: _scanned,
    exchanged: _exchanged,
    square: _square,
    delayed: _delayed,
    placed: _placed,
}
