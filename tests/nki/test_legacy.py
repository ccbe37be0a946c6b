"""Kernels of NKI 0.x (`neuronxcc.nki`) beside numpy, and what is refused in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
import numpy as np
import pytest
from neuronxcc.nki import trace as trace
from neuronxcc.nki.language import par_dim

import neuronjax.nki as present
from neuronjax.errors import NeuronError
from neuronjax.nki import isa as present_isa
from neuronjax.nki import language as present_nl
from neuronjax.program.operand import Memory
from neuronjax.program.vector_engine import TensorTensor
from neuronjax.program.walk import instructions

ROWS = np.arange(12 * 24, dtype=np.float32).reshape(12, 24) / 64
TALL = np.linspace(-1, 1, 200 * 16, dtype=np.float32).reshape(200, 16)
SQUARE = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)


@nki.jit
def blocks(x):
    out = nl.ndarray((12, 24), dtype=np.float32, buffer=nl.shared_hbm)
    tiles = nl.ndarray((3, 2, par_dim(4), 12), dtype=np.float32, buffer=nl.sbuf)
    p, f = nl.arange(4)[:, None], nl.arange(12)[None, :]
    for i in nl.affine_range(3):
        for j in nl.affine_range(2):
            tiles[i, j, p, f] = nl.load(x[4 * i + p, 12 * j + f], dtype=np.float32, mask=None)
            tiles[i, j, p, f] = nisa.activation(op=nl.square, data=tiles[i, j, p, f], scale=2.0)
    for i in nl.affine_range(3):
        for j in nl.sequential_range(2):
            nl.store(out[i * 4 + p, 12 * j + f], value=tiles[i, j, p, f] - 1.0)
    return out


@nki.jit
def masked(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    i = nl.mgrid[0:128, 0:16]
    for block in nl.affine_range(2):
        mask = -128 * block - i.p + 199 >= 0
        tile = nl.load(x[128 * block + i.p, i.x], mask=mask)
        doubled = nl.add(tile, tile, mask=mask)
        nl.store(out[128 * block + i.p, i.x], np.float32(0.5) * doubled + 1, mask=mask)
    return out


@nki.jit(mode="auto")
def products(x):
    p, f = nl.arange(32)[:, None], nl.arange(64)[None, :]
    out = nl.ndarray((64, 64), dtype=np.float32, buffer=nl.shared_hbm)
    total = nl.zeros((par_dim(64), 64), np.float32, buffer=nl.psum, lazy_initialization=True)
    sums = nl.zeros((64, 64), nl.float32, buffer=nl.psum)
    for k in nl.affine_range(2):
        part = nl.load(x[32 * k + p, f])
        total[nl.arange(64)[:, None], f] += nisa.nc_matmul(part, part, mask=None)
        sums += nl.matmul(part, part, transpose_x=True)
    nl.store(out, value=total + nl.copy(sums, dtype=np.float32))
    return out


@nki.jit
def halves(x):
    """Adds products up in two parts of a tile that do not meet."""
    out = nl.ndarray((64, 64), dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(64)[:, None], nl.arange(32)[None, :]
    sums = nl.zeros((64, 64), nl.float32, buffer=nl.psum)
    whole = nl.load(x)
    for _ in nl.affine_range(2):
        sums[p, f] += nl.matmul(whole, nl.load(x[p, f]), transpose_x=True)
        sums[p, 32 + f] += nl.matmul(whole, nl.load(x[p, 32 + f]), transpose_x=True)
    nl.store(out, nl.copy(sums, dtype=np.float32))
    return out


@nki.jit
def filled(x):
    """Begins with values that are read, added to, or stay."""
    out = nl.ndarray((3, 64, 64), dtype=np.float32, buffer=nl.shared_hbm)
    p, half = nl.arange(64)[:, None], nl.arange(32)[None, :]
    whole = nl.load(x)
    kept = nl.ndarray((64, 64), dtype=np.float32, init_value=3.0)
    kept[p, half] = nl.load(x[p, half])
    twos = nl.full((64, 64), 2.0, np.float32, buffer=nl.psum)
    twos += nl.matmul(whole, whole, transpose_x=True)
    zeros = nl.zeros((64, 64), np.float32, buffer=nl.psum)
    nl.copy(zeros[p, half])
    for part, tile in enumerate((kept, twos, zeros)):
        nl.store(out[part], nl.copy(tile))
    return out


@nki.jit
def compared(x):
    out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(12)[:, None], nl.arange(24)[None, :]
    tile = nl.zeros((12, 24), np.float32)
    tile[p, f] = nl.load(x[p, f], mask=(f == 5))
    nl.store(out, nl.where(tile == 0.0, 7.0, tile))
    return out


@nki.jit
def reduced(x):
    out = nl.ndarray((4, 2), dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(4)[:, None], nl.arange(8)[None, :]
    part = nl.ndarray((3, 3, par_dim(4), 1), dtype=np.float32, buffer=nl.sbuf)
    total = nl.ndarray((par_dim(4), 2), dtype=np.float32, buffer=nl.sbuf)
    for i in nl.affine_range(3):
        for j in nl.affine_range(3):
            tile = nl.load(x[4 * i + p, 8 * j + f])
            part[i, j, p, 0] = nisa.tensor_reduce(nl.max, data=tile, axis=[1])
            total[p, 0] = nl.loop_reduce(part[i, j, p, 0], op=np.max, loop_indices=[i, j])
    total[p, 1] = nl.exp(total[p, 0])
    nl.store(out, total)
    return out


@nki.jit
def large(x):
    """Keeps 2 KiB of each of 160 tiles on every partition: more than there is."""
    out = nl.ndarray((4, 512), dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(4)[:, None], nl.arange(512)[None, :]
    kept = nl.ndarray((160, par_dim(4), 512), dtype=np.float32, buffer=nl.sbuf)
    total = nl.zeros((par_dim(4), 512), dtype=np.float32)
    column = nl.load(x[p, nl.arange(1)[None, :]])
    for i in nl.affine_range(160):
        kept[i, p, f] = nl.broadcast_to(column, shape=(4, 512)) * 1.0
    for i in nl.affine_range(160):
        total[p, f] += kept[i, p, f]
    nl.store(out, total)
    return out


@nki.jit
def large_sums(x):
    """Blocks larger than SBUF that have values at first, of which all or a half is written."""
    out = nl.ndarray((2, 4, 512), dtype=np.float32, buffer=nl.shared_hbm)
    p, f, half = nl.arange(4)[:, None], nl.arange(512)[None, :], nl.arange(256)[None, :]
    sums = nl.ndarray((100, par_dim(4), 512), dtype=np.float32)
    parts = nl.full((100, par_dim(4), 512), 3.0, dtype=np.float32)
    column = nl.load(x[p, nl.arange(1)[None, :]])
    for k in nl.sequential_range(2):
        for i in nl.affine_range(100):
            row = nl.multiply(nl.broadcast_to(column, shape=(4, 512)), 1.0 + i % 2)
            sums[i, p, f] = nl.loop_reduce(row, op=np.add, loop_indices=[k])
            parts[i, p, half] = nl.broadcast_to(column, shape=(4, 256)) * 1.0
    totals = nl.zeros((2, par_dim(4), 512), dtype=np.float32)
    for i in nl.affine_range(100):
        totals[0, p, f] += sums[i, p, f]
        totals[1, p, f] += parts[i, p, f]
    for k in nl.affine_range(2):
        nl.store(out[k], totals[k, p, f])
    return out


@nki.jit
def of_grid(x: nt.tensor):
    out = nl.ndarray((12, 24), dtype=np.float32, buffer=nl.shared_hbm)
    row, column = nl.program_id(0), nl.program_id(1)
    part = nl.load(x[row * 4 : row * 4 + 4, column * 12 : column * 12 + 12])
    nl.store(out[row * 4 : row * 4 + 4, column * 12 : column * 12 + 12], nl.negative(part))
    return out


@nki.compiler.skip_middle_end_transformations
@nki.jit
def pooled(x: nki.tensor):
    """Reduces dimensions that are not the last ones, where a predicate of the loop holds."""
    out = nl.ndarray((4, 3, 24), dtype=np.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((par_dim(4), 3, 24), dtype=x.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
    tile[...] = nl.load(x.reshape((4, 3, 24)))
    p, i, j, k = nl.mgrid[0:4, 0:3, 0:2, 0:12]
    for half in nl.affine_range(2):
        greatest = nl.max(tile[p, i, 2 * k + j], axis=2, mask=half * 12 >= 0)
        means = nl.mean(tile[p, i, 2 * k + j], axis=2, keepdims=True, mask=half == 0)
        nl.store(out[:, :, 0:12], greatest, mask=half == 0)
        nl.store(out[:, :, 12:24], nl.max(means, axis=2), mask=half * 12 < 12)
    return out


@dataclass(frozen=True)
class Case:
    kernel: Any
    array: np.ndarray
    expected: Callable[[np.ndarray], np.ndarray]
    notes: str = ""


def _filled(x: np.ndarray) -> np.ndarray:
    kept = np.where(np.arange(64) < 32, x, 3)
    return np.stack([kept, 2 + x.T @ x, np.zeros_like(x)])


def _summed(x: np.ndarray) -> np.ndarray:
    columns = np.repeat(x[:4, :1], 512, 1)
    return np.stack([300 * columns, 100 * np.where(np.arange(512) < 256, columns, 3)])


def _pooled(x: np.ndarray) -> np.ndarray:
    pairs = x.reshape(4, 3, 12, 2)
    return np.concatenate([pairs.max(-1), pairs.mean(-1)], -1)


def _compared(x: np.ndarray) -> np.ndarray:
    return np.where((np.arange(24) == 5) & (x != 0), x, 7)


def _reduced(x: np.ndarray) -> np.ndarray:
    greatest = x.reshape(3, 4, 24).max((0, 2))
    return np.stack([greatest, np.exp(greatest)], 1)


CASES = [
    pytest.param(Case(blocks, ROWS, lambda x: 4 * x * x - 1), id="blocks"),
    pytest.param(Case(masked, TALL, lambda x: x + 1), id="masks"),
    pytest.param(Case(products, SQUARE, lambda x: 2 * x.T @ x), id="products"),
    pytest.param(Case(halves, SQUARE, lambda x: 2 * x.T @ x), id="sums of parts"),
    pytest.param(Case(filled, SQUARE, _filled), id="values at first"),
    pytest.param(Case(compared, ROWS, _compared), id="comparisons"),
    pytest.param(Case(reduced, ROWS, _reduced), id="loop_reduce"),
    pytest.param(
        Case(large, ROWS, lambda x: np.repeat(160 * x[:4, :1], 512, 1), "do not fit into SBUF"),
        id="larger than SBUF",
    ),
    pytest.param(
        Case(large_sums, ROWS, _summed, "do not fit into SBUF"), id="sums larger than SBUF"
    ),
    pytest.param(Case(pooled, ROWS, _pooled), id="reductions of any dimension"),
    pytest.param(Case(of_grid[3, 2], ROWS, lambda x: -x, "6 programs of the grid"), id="grid"),
]


@pytest.mark.parametrize("case", CASES)
def test_kernels_of_the_earlier_dialect(case: Case) -> None:
    compiled = case.kernel.trace(case.array, target="trn1")
    np.testing.assert_allclose(
        compiled.run([case.array]), case.expected(case.array), rtol=1e-5, atol=1e-5
    )
    assert case.notes in " ".join(compiled.notes)


def test_loops_over_blocks_stay_loops() -> None:
    notes = blocks.trace(ROWS, target="trn1").notes
    assert not [note for note in notes if "written out" in note]


@nki.jit
def summed(x):
    out = nl.ndarray((2, 64, 64), dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(64)[:, None], nl.arange(64)[None, :]
    sums = nl.zeros((2, par_dim(64), 64), nl.float32, buffer=nl.psum)
    tile = nl.load(x)
    for block in nl.affine_range(2):
        for _ in nl.affine_range(3):
            sums[block, p, f] += nl.matmul(tile, tile, transpose_x=True)
        nl.store(out[block], nl.copy(sums[block, p, f]))
    return out


def test_products_are_added_up_by_the_tensor_engine() -> None:
    compiled = summed.trace(SQUARE, target="trn1")
    np.testing.assert_allclose(compiled.run([SQUARE])[0], 3 * SQUARE.T @ SQUARE, rtol=1e-5)
    assert not [i for _, i in instructions(compiled.program) if isinstance(i, TensorTensor)]


@nki.jit
def stepped(x):
    """What AdamW does: numbers and tiles in turn, with a copy whose engine is named."""
    out = nl.ndarray((2, 128, 512), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        tile = nl.load(x[i])
        decayed = nl.multiply(tile, 0.25)
        tile = nl.subtract(tile, decayed)
        kept = nisa.tensor_copy(nl.add(tile, 1.0), engine=nisa.vector_engine)
        nl.store(out[i], kept)
    return out


@nki.jit
def spread(x):
    out = nl.ndarray((128, 600), dtype=np.float32, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x[0:1]).broadcast_to((128, 600)))
    return out


ENGINES = [
    # On Trn1, 0.25 · x of both iterations lies in PSUM.
    (stepped, (2, 128, 512), "trn1", {"activation", "tensor_copy"}, 2),
    (stepped, (2, 128, 512), "trn2", {"activation", "tensor_copy"}, 0),
    (spread, (4, 600), "trn1", {"nc_matmul", "activation"}, 2),
]


@pytest.mark.parametrize(("kernel", "shape", "target", "used", "psum_tiles"), ENGINES)
def test_engines_are_those_that_the_compiler_of_that_time_chose(
    kernel: Any, shape: tuple[int, ...], target: str, used: set[str], psum_tiles: int
) -> None:
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    compiled = kernel.trace(x, target=target)
    expected = 0.75 * x + 1 if kernel is stepped else np.repeat(x[:1], 128, 0)
    np.testing.assert_allclose(compiled.run([x]), expected, rtol=1e-6)
    (own,) = compiled.program.body
    names = {i.mnemonic for _, i in instructions(compiled.program)}
    assert names - {"dma_copy", "memset", "tensor_tensor"} == used
    assert sum(buffer.memory is Memory.PSUM for buffer in own.buffers) == psum_tiles


def _halves(numbers: Any, x: Any) -> Any:
    """The sum of each tile and itself, put into the halves of another one."""
    out = nl.ndarray((128, 512), dtype=np.float32, buffer=nl.shared_hbm)
    p, f = nl.arange(64)[:, None], nl.arange(64)[None, :]
    whole = nl.arange(128)[:, None]
    for i in numbers:
        tile = nl.load(x[p, 64 * i + f])
        both = nl.ndarray((128, 64), dtype=np.float32, buffer=nl.sbuf)
        both[p, f] = nisa.tensor_tensor(tile, tile, np.add)
        both[64 + p, f] = nisa.tensor_tensor(tile, tile, np.add)
        nl.store(out[whole, 64 * i + f], both)
    return out


@pytest.mark.parametrize(("numbers", "places"), [(range(8), 1), (nl.affine_range(8), 4)])
def test_parts_of_partitions_are_copied_and_rounds_of_python_have_one_place(
    numbers: Any, places: int
) -> None:
    def kernel(x):
        return _halves(numbers, x)

    x = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    compiled = nki.jit(kernel).trace(x, target="trn1")
    np.testing.assert_array_equal(compiled.run([x]), np.concatenate([2 * x, 2 * x]))
    (own,) = compiled.program.body
    assert [i.mnemonic for _, i in instructions(compiled.program)].count("activation") == 16
    assert sum(buffer.slots for buffer in own.buffers if buffer.shape[0] == 128) == places


def _chains(language: Any, x: Any) -> Any:
    """Chains of work that go to and fro between two engines."""
    out = language.ndarray((6, 128, 512), dtype=np.float32, buffer=language.shared_hbm)
    for i in language.affine_range(6):
        tile = language.load(x[i])
        for _ in range(4):
            tile = language.multiply(language.exp(tile), tile)
        language.store(out[i], tile)
    return out


def test_that_compiler_orders_instructions_and_the_present_one_does_not() -> None:
    x = np.zeros((6, 128, 512), np.float32)

    def earlier(x):
        return _chains(nl, x)

    def now(x):
        return _chains(present_nl, x)

    times = [
        present.evaluate(kernel, None, [x], target="trn1").device_ns
        for kernel in (nki.jit(earlier), present.jit(now))
    ]
    assert times[0] < 0.9 * times[1]


def test_decorators(capsys: pytest.CaptureFixture[str]) -> None:
    measured = nki.benchmark(warmup=2, iters=5)(blocks)
    np.testing.assert_allclose(measured(ROWS), 4 * ROWS * ROWS - 1, rtol=1e-5)
    latency = measured.benchmark_result.nc_latency.get_latency_percentile(50)
    assert f"{latency:.2f} us" in capsys.readouterr().out
    assert latency > 1
    simulated = nki.simulate_kernel(blocks, ROWS)
    np.testing.assert_array_equal(nki.baremetal(blocks)(ROWS), simulated)


def _aslant(x):
    p, f = nl.arange(12)[:, None], nl.arange(24)[None, :]
    nl.load(x[p, f], mask=(p < f))


def _outside(x):
    nl.load(x[nl.arange(13)[:, None], nl.arange(24)[None, :]])


def _unsplit(x):
    nl.ndarray((2, par_dim(4), 8), dtype=np.float32)[nl.arange(2)[:, None], 0, 0]


def _mixed(x):
    present_nl.exp(nl.load(x))


def _block_at_a_register(x):
    blocks = nl.ndarray((4, par_dim(12), 24), dtype=np.float32)
    blocks[present_isa.register_alloc(2)] = nl.load(x)


def _slice_at_a_register(x):
    nl.load(x[nl.ds(present_isa.register_alloc(2), 4)])


def _never_fits(x):
    tile = nl.ndarray((128, 100_000), dtype=np.float32)
    tile[...] = 0.0
    out = nl.ndarray((128, 64), dtype=np.float32, buffer=nl.shared_hbm)
    nl.store(out, tile[:, 0:64])
    return out


def _products_of_indices(x):
    nl.load(x[nl.arange(4)[:, None] * nl.arange(4)[:, None], 0])


def _sums_over_each_other(x):
    sums, row = nl.zeros((24, 24), nl.float32, buffer=nl.psum), nl.load(x)
    part = sums[nl.arange(24)[:, None], nl.arange(12)[None, :]]
    part += nl.matmul(row, nl.load(x[0:12, 0:12]), transpose_x=True)
    sums += nl.matmul(row, row, transpose_x=True)


def _unequal(x):
    p, f = nl.arange(12)[:, None], nl.arange(24)[None, :]
    nl.load(x[p, f], mask=(f != 5))


def _zeros_beside_a_sum(x):
    sums, row = nl.zeros((24, 24), nl.float32, buffer=nl.psum), nl.load(x)
    part = sums[nl.arange(24)[:, None], nl.arange(12)[None, :]]
    part += nl.matmul(row, nl.load(x[0:12, 0:12]), transpose_x=True)
    nl.copy(sums)


@pytest.mark.parametrize(
    ("kernel", "text", "line"),
    [
        (_aslant, "nisa.affine_select", 2),
        (_outside, "indices from 0 to 12 are out of bounds for dimension 0", 1),
        (_unsplit, "block dimensions", 1),
        (_mixed, "one of the dialects", 1),
        (_block_at_a_register, "a register is no index of a block", 2),
        (_slice_at_a_register, "a register is no index of a block or a slice", 1),
        (_never_fits, "those alive at the same time exceed", 1),
        (_products_of_indices, "indices are affine", 1),
        (_sums_over_each_other, "meets, but is not, a part", 4),
        (_unequal, "a mask of !=", 2),
        (_zeros_beside_a_sum, "the rest has the zeros of nl.zeros", 4),
    ],
)
def test_what_is_refused_names_the_line(kernel: Callable[..., Any], text: str, line: int) -> None:
    with pytest.raises(NeuronError, match=text) as caught:
        nki.jit(kernel).trace(ROWS, target="trn1")
    assert f"{__file__}:{kernel.__code__.co_firstlineno + line}:" in str(caught.value)


def test_a_present_kernel_takes_no_function_of_the_earlier_dialect() -> None:
    def mixed(x):
        return nl.load(x)

    with pytest.raises(NeuronError, match="is NKI 0"):
        present.jit(mixed).trace(ROWS, target="trn1")
