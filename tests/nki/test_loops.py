"""Loops of kernels: one round stays where rounds are alike, all of them where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.program.program import Kernel, Loop, Node
from neuronjax.program.walk import instructions
from tests.nki.kernels import stored, tile

RNG = np.random.default_rng(3)
X = RNG.integers(-4, 5, (9 * 32, 48)).astype(np.float32)
BLOCKS = X.reshape(9, 32, 48)


DATAFLOW = (*map(core.DataflowOrder, range(3)), core.DataflowOrder(1, adversarial=True))


def rows(number: int) -> slice:
    return nl.ds(32 * number, 32)


def doubled(x: Tensor) -> Tensor:
    """More rounds than a tile has places."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(9):
        nl.store(out[rows(number)], nl.add(nl.load(x[rows(number)]), nl.load(x[rows(number)])))
    return out


def backwards(x: Tensor) -> Tensor:
    """Steps other than 1, and index arithmetic of Python that comes out as equal steps."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(8, -1, -1):
        for half in nl.sequential_range(0, 48, 24):
            columns = slice(half, half + 24)
            block = nl.load(x[rows(number), columns])
            nl.store(out[rows((80 - 10 * number) // 10 % 9), columns], block)
    return out


def added(x: Tensor) -> Tensor:
    """One tile that all rounds of both loops update."""
    total = nl.zeros((32, 16), nl.float32)
    for number in nl.sequential_range(9):
        for part in nl.sequential_range(3):
            block = nl.load(x[rows(number), 16 * part : 16 * part + 16])
            nisa.tensor_tensor(total, total, block, nl.add)
    return stored(total)


def products(x: Tensor) -> Tensor:
    """One sum in PSUM over both loops."""
    sums = tile((16, 16), buffer=nl.psum)
    for number in nl.affine_range(9):
        for part in nl.affine_range(3):
            block = nl.load(x[rows(number), 16 * part : 16 * part + 16])
            nisa.nc_matmul(sums, block, block)
    copied = tile((16, 16))
    nisa.tensor_copy(copied, sums)
    return stored(copied)


def first_otherwise(x: Tensor) -> Tensor:
    """The rounds of the outer loop differ, those of the inner one do not."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(9):
        for part in nl.affine_range(3):
            columns = nl.ds(16 * part, 16)
            block = nl.load(x[rows(number), columns])
            nl.store(out[rows(number), columns], nl.negative(block) if number == 0 else block)
    return out


def kept(x: Tensor) -> Tensor:
    tiles = [nl.load(x[rows(number)]) for number in nl.affine_range(9)]
    total = tiles[0]
    for block in tiles[1:]:
        total = nl.add(total, block)
    return stored(total)


def left(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(100):
        if number == 9:
            break
        nl.store(out[rows(number)], nl.load(x[rows(number)]))
    return out


def remainder(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in nl.affine_range(0, 9 * 32, 17):
        block = slice(start, min(start + 17, 9 * 32))
        nl.store(out[block], nl.load(x[block]))
    return out


def squares(x: Tensor) -> Tensor:
    """Addresses that do not advance by equal steps."""
    out = nl.zeros((32, 48), nl.float32)
    for number in nl.affine_range(3):
        block = nl.load(x[rows(number * number)])
        nisa.tensor_tensor(out, out, block, nl.add)
    return stored(out)


def roomy(x: Tensor) -> Tensor:
    """Tiles of which SBUF has room for one, but not for four."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.affine_range(9):
        block = tile((32, 40_000))
        nisa.memset(block, 1.0)
        nisa.dma_copy(dst=block[:, 0:48], src=x[rows(number)])
        nl.store(out[rows(number)], block[:, 0:48])
    return out


def ranges(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in range(9):
        for part in range(0, 48, 16):
            block = x[rows(number), part : part + 16]
            nl.store(out[rows(number), part : part + 16], nl.multiply(nl.load(block), 2.0))
    return out


def of_lists(x: Tensor) -> Tensor:
    """Loops over lists and pairs, in a function, with a comprehension whose tiles stay."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.load(x[rows(number)]) for number in range(9)]

    def store(number: int, factors: list[float]) -> None:
        for part, factor in enumerate(factors):
            nisa.tensor_scalar(tiles[number], tiles[number], nl.multiply, factor)
            nl.store(out[rows(number), 16 * part : 16 * part + 16], tiles[number][:, 0:16])

    for place in reversed(list(range(9))):
        store(place, [1.0, 1.0, 1.0])
    return out


def nothing_between(x: Tensor) -> Tensor:
    """The last iteration of the inner loop is at the same place as its first one."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in range(9):
        for part in [32, 0, 16]:
            nl.store(
                out[rows(number), part : part + 16], nl.load(x[rows(number), part : part + 16])
            )
    return out


def registers(x: Tensor) -> Tensor:
    """A register of an iteration is the address of a transfer."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.sequential_range(9):
        index = tile((1, 1), nl.int32)
        nisa.memset(index, 32 * (number % 1))
        register = nisa.register_alloc()
        nisa.register_load(register, index)
        block = tile((32, 48))
        nisa.dma_copy(block, x[nl.ds(register, 32), :])
        nl.store(out[rows(number)], block)
    return out


def viewed(x: Tensor) -> Tensor:
    """Tiles that are read as words of another width, also those of which nothing else is."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in range(9):
        block, zeros = tile((32, 48)), tile((32, 48))
        nisa.dma_copy(block, x[rows(number)])
        nisa.memset(zeros.view(nl.int16), 0)
        for part in range(2):
            half = block.view(nl.int16)[:, nl.ds(48 * part, 48)]
            nisa.tensor_tensor(half, half, zeros.view(nl.int16)[:, 0:48], nl.add)
        nl.store(out[rows(number)], block)
    return out


def viewed_before(x: Tensor) -> Tensor:
    """A tile that is older than the loop in which it is read as words of another width."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    block = tile((32, 48))
    for number in range(9):
        nisa.dma_copy(block, x[rows(number)])
        words = block.view(nl.int16)
        nisa.tensor_scalar(words, words, nl.add, 0)
        nl.store(out[rows(number)], block)
    return out


def padded(x: Tensor) -> Tensor:
    """Tiles whose padding nothing writes before it is read, between others that take its place."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in range(9):
        block = nl.ndarray((64, 48), nl.float32, address=(0, 0))
        nisa.dma_copy(block[0:32, :], x[rows(number)])
        nisa.tensor_scalar(block, block, nl.multiply, 2.0)
        nl.store(out[rows(number)], block[0:32, :])
        other = nl.ndarray((64, 48), nl.float32, address=(0, 0))
        nisa.memset(other, 1.0)
    return out


def static(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for number in nl.static_range(9):
        nl.store(out[rows(number)], nl.load(x[rows(number)]))
    return out


def few_behind_another(x: Tensor) -> Tensor:
    """Too few iterations for a loop of their own, behind one that differs, with loops in each."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    for number in [7, 0, 1, 2]:
        block = nl.load(x[rows(number)])
        for part in range(9):
            column = block[:, nl.ds(part, 1)]
            nisa.tensor_scalar(column, column, nl.multiply, 2.0)
        nl.store(out[rows(number)], block)
    return out


def negated_first() -> np.ndarray:
    return np.concatenate([-X[:32], X[32:]])


def some_doubled() -> np.ndarray:
    doubled = BLOCKS.copy()
    doubled[[7, 0, 1, 2], :, 0:9] *= 2
    return doubled.reshape(X.shape)


@dataclass(frozen=True)
class Case:
    """A kernel of `X`, its result, its loops with their trips, and what its notes say. A trip has
    up to four iterations, and what is left of them is written out."""

    kernel: Callable[[Tensor], Tensor]
    expected: np.ndarray
    trips: tuple[int, ...]
    note: str = ""


def over_blocks() -> np.ndarray:
    parts = BLOCKS.reshape(9, 32, 3, 16)
    return np.einsum("bkpm,bkpn->mn", parts, parts)


CASES = [
    Case(doubled, 2 * X, (2,)),
    Case(backwards, BLOCKS[::-1].reshape(X.shape), (4,)),
    Case(added, BLOCKS.reshape(9, 32, 3, 16).sum((0, 2)), (9,)),
    Case(products, over_blocks(), (9,)),
    Case(first_otherwise, negated_first(), (8,)),
    Case(kept, BLOCKS.sum(0), (), "a tile is used after the iteration that creates it"),
    Case(left, X, (), "it is left early"),
    Case(remainder, X, (4,)),
    Case(squares, BLOCKS[[0, 1, 4]].sum(0), (), "does not advance by equal steps"),
    Case(roomy, X, (2,)),
    Case(ranges, 2 * X, (9,)),
    Case(of_lists, np.tile(X[:, 0:16], (1, 3)), (), "a tile is used after"),
    Case(nothing_between, X, (9,), "does not advance by equal steps"),
    Case(registers, np.tile(X[0:32], (9, 1)), (2,)),
    Case(viewed, X, (2, 2, 2, 2, 2, 2)),
    Case(viewed_before, X, (2,)),
    Case(padded, 2 * X, (), "a tile is read where nothing has been written"),
    Case(few_behind_another, some_doubled(), (9, 9, 9, 9)),
    Case(static, X, ()),
]


def trips(nodes: Sequence[Node]) -> list[int]:
    counts: list[int] = []
    for node in nodes:
        if isinstance(node, Loop):
            assert isinstance(node.trips, int)
            counts += [node.trips, *trips(node.body)]
    return counts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)
def test_loops(case: Case) -> None:
    compiled = nki.jit(case.kernel).trace(X)
    (kernel,) = compiled.program.body
    assert isinstance(kernel, Kernel)
    assert trips(kernel.body) == list(case.trips)
    paths = [place.path for place, _ in instructions(compiled.program)]
    assert len(set(paths)) == len(paths)
    assert bool(compiled.notes) == bool(case.note)
    if case.note:
        assert "test_loops.py:" in compiled.notes[0]
        assert case.note in compiled.notes[0]
    for order in (
        core.ProgramOrder(),
        core.DataflowOrder(seed=4),
        core.DataflowOrder(seed=5, adversarial=True),
    ):
        np.testing.assert_array_equal(compiled.run([X], order), case.expected)


def test_programs_do_not_grow_with_trips() -> None:
    sizes = []
    for blocks in (8, 64):
        array = np.zeros((32 * blocks, 4), np.float32)

        @nki.jit
        def kernel(x: Tensor, blocks: int = blocks) -> Tensor:
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            for number in nl.affine_range(blocks):
                nl.store(out[rows(number)], nl.exp(nl.load(x[rows(number)])))
            return out

        (written,) = kernel.trace(array).program.body
        assert isinstance(written, Kernel)
        sizes.append((len(written.body), len(written.buffers)))
    assert sizes[0] == sizes[1]


def test_sums_of_rounded_products_have_the_same_bits_in_every_order() -> None:
    kernel, x = nki.jit(products), RNG.standard_normal((9 * 32, 48)).astype(np.float32)
    blocks = x.reshape(9 * 32, 3, 16).astype(np.float64)
    in_order, *others = (nki.simulate(kernel, order)(x) for order in (None, *DATAFLOW))
    np.testing.assert_allclose(in_order, np.einsum("kpi,kpj->ij", blocks, blocks), atol=1e-3)
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), in_order.view(np.uint32))
