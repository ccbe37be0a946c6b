"""Instructions of `nki.isa` and small kernels, compared with numpy."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import KernelWarning, NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((128, 96), dtype=np.float32) for _ in range(2))


def scaled(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.tensor_scalar(result, loaded(x), nl.multiply, 2.0, op1=nl.add, operand1=-1.0)
    return stored(result)


def fused(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.scalar_tensor_tensor(result, loaded(x), nl.multiply, 3.0, nl.subtract, loaded(y))
    return stored(result)


def softmax(x: Tensor, y: Tensor) -> Tensor:
    scores, largest, total = loaded(x), tile((128, 1)), tile((128, 1))
    nisa.tensor_reduce(largest, nl.maximum, scores, axis=1, negate=True)
    nisa.activation_reduce(scores, nl.exp, scores, nl.add, total, bias=largest)
    nisa.reciprocal(total, total)
    nisa.tensor_scalar(scores, scores, nl.multiply, total)
    return stored(scores)


def layer_norm(x: Tensor, y: Tensor) -> Tensor:
    rows, statistics, moments = loaded(x), tile((128, 6)), tile((128, 2))
    nisa.bn_stats(statistics, rows)
    nisa.bn_aggr(moments, statistics)
    mean, variance = moments[:, 0:1], moments[:, 1:2]
    nisa.tensor_scalar(variance, variance, nl.add, 1e-5)
    nisa.activation(variance, nl.sqrt, variance)
    nisa.reciprocal(variance, variance)
    nisa.tensor_scalar(rows, rows, nl.subtract, mean, op1=nl.multiply, operand1=variance)
    return stored(rows)


def product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ · y, the rows in four parts that are added up in PSUM."""
    left, right = loaded(x), loaded(y)
    sums = tile((96, 96), buffer=nl.psum)
    for part in nl.sequential_range(4):
        rows = nl.ds(32 * part, 32)
        nisa.nc_matmul(sums, left[rows], right[rows])
    result = tile((96, 96))
    nisa.tensor_copy(result, sums)
    return stored(result)


def transposed(x: Tensor, y: Tensor) -> Tensor:
    turned, result = tile((96, 128), buffer=nl.psum), tile((96, 128))
    nisa.nc_transpose(turned, loaded(x))
    nisa.tensor_copy(result, turned, engine=nisa.engine.scalar)
    return stored(result)


def scanned(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.tensor_tensor_scan(result, loaded(x), loaded(y), 0.0, nl.multiply, nl.add)
    return stored(result)


def counted(x: Tensor, y: Tensor) -> Tensor:
    result = tile((128, 96), nl.int32)
    nisa.iota(result, [[2, 96]], offset=5, channel_multiplier=1000)
    return stored(result)


def causal(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.affine_select(result, [[-1, 96]], 1, loaded(x), -9.0, cmp_op=nl.greater_equal)
    return stored(result)


def greatest(x: Tensor, y: Tensor) -> Tensor:
    result = tile((128, 8))
    nisa.max8(result, loaded(x))
    return stored(result)


def filled(x: Tensor, y: Tensor) -> Tensor:
    result, positive = tile(x.shape), tile(x.shape, nl.uint8)
    nisa.memset(result, 7.0)
    nisa.tensor_scalar(positive, loaded(x), nl.greater, 0.0)
    nisa.tensor_copy_predicated(result, loaded(y), positive)
    return stored(result)


def exponents(x: Tensor, y: Tensor) -> Tensor:
    result, total = tile(x.shape), tile((128, 1))
    nisa.exponential(result, loaded(x), 0.5, total, nisa.reduce_cmd.reset_reduce)
    nisa.tensor_scalar(result, result, nl.subtract, total)
    return stored(result)


def chained(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.activate2(result, nl.tanh, loaded(x), 2.0, 1.0, nl.multiply, nl.subtract)
    return stored(result)


def summed(x: Tensor, y: Tensor) -> Tensor:
    result, total = tile(x.shape), tile((128, 1))
    nisa.tensor_scalar_reduce(result, loaded(x), nl.multiply, 3.0, nl.add, total)
    return stored(total)


def cumulated(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.tensor_scalar_cumulative(result, loaded(x), nl.multiply, nl.add, 2.0)
    return stored(result)


def selected(x: Tensor, y: Tensor) -> Tensor:
    result, positive = tile(x.shape), tile(x.shape, nl.uint8)
    rows = loaded(x)
    nisa.tensor_scalar(positive, rows, nl.greater, 0.0)
    nisa.select_reduce(result, positive, rows, -1.0)
    return stored(result)


def over_partitions(x: Tensor, y: Tensor) -> Tensor:
    result = tile((1, 96))
    nisa.tensor_partition_reduce(result, nl.add, loaded(x))
    return stored(result)


def gathered(x: Tensor, y: Tensor) -> Tensor:
    result, places = tile((128, 8)), tile((128, 8), nl.uint32)
    nisa.iota(places, [[3, 8]])
    nisa.nc_n_gather(result, loaded(x), places)
    return stored(result)


def positions(x: Tensor, y: Tensor) -> Tensor:
    rows, largest, places = loaded(x), tile((128, 8)), tile((128, 8), nl.uint32)
    nisa.max8(largest, rows)
    nisa.nc_find_index8(places, rows, largest)
    return stored(places)


def without_greatest(x: Tensor, y: Tensor) -> Tensor:
    rows, largest, result = loaded(x), tile((128, 8)), tile(x.shape)
    nisa.max8(largest, rows)
    nisa.nc_match_replace8(result, rows, largest, -100.0)
    return stored(result)


def shuffled(x: Tensor, y: Tensor) -> Tensor:
    result = tile(x.shape)
    nisa.nc_stream_shuffle(result, loaded(x), [31 - i for i in range(32)])
    return stored(result)


def spread(x: Tensor, y: Tensor) -> Tensor:
    """The first row in every place but the last, which stays."""
    result = tile((32, x.shape[1]))
    nisa.memset(result, 5)
    nisa.nc_stream_shuffle(result, loaded(x)[0:1], [0] * 31 + [255])
    return stored(result)


def converted(x: Tensor, y: Tensor) -> Tensor:
    """The sum in BF16 of what `nl.load` converts, and of ones."""
    left = nl.load(x, dtype=nl.bfloat16)
    result = tile(x.shape)
    nisa.tensor_tensor(result, left, nl.ones(x.shape, nl.float32), nl.add)
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, result)
    return out


def _without_greatest() -> np.ndarray:
    result = X.copy()
    np.put_along_axis(result, np.argsort(X, axis=1)[:, -8:], -100, axis=1)
    return result


def _scan() -> np.ndarray:
    carry, columns = np.zeros(128, np.float32), []
    for x, y in zip(X.T, Y.T, strict=True):
        carry = x * carry + y
        columns.append(carry)
    return np.stack(columns, axis=1)


def _softmax() -> np.ndarray:
    weights = np.exp(X - X.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


KERNELS: dict[Callable[..., Tensor], np.ndarray] = {
    scaled: 2 * X - 1,
    fused: 3 * X - Y,
    softmax: _softmax(),
    layer_norm: (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5),
    product: X.astype(np.float64).T @ Y,
    transposed: X.T,
    scanned: _scan(),
    counted: 5 + 1000 * np.arange(128)[:, None] + 2 * np.arange(96),
    causal: np.where(np.arange(128)[:, None] >= np.arange(96), X, -9),
    greatest: np.sort(X, axis=1)[:, :-9:-1],
    filled: np.where(X > 0, Y, 7),
    gathered: X[:, 0:24:3],
    positions: np.argsort(X, axis=1)[:, :-9:-1],
    without_greatest: _without_greatest(),
    shuffled: X.reshape(4, 32, 96)[:, ::-1].reshape(128, 96),
    spread: np.concatenate([X[:1].repeat(31, axis=0), np.full((1, 96), 5)]),
    converted: X.astype(ml_dtypes.bfloat16).astype(np.float32) + 1,
    exponents: np.exp(X - 0.5) - np.exp(X - 0.5).sum(1, keepdims=True),
    chained: np.tanh(2 * X - 1),
    summed: 3 * X.sum(1, keepdims=True),
    cumulated: np.cumsum(2 * X, axis=1),
    selected: np.where(X > 0, X, -1),
    over_partitions: X.sum(0, keepdims=True),
}


LATEST = {exponents, chained}  # of NeuronCore-v4


def test_a_function_is_a_kernel_without_the_mark() -> None:
    np.testing.assert_array_equal(nki.simulate(scaled)(X, Y), nki.simulate(nki.jit(scaled))(X, Y))
    assert nki.benchmark(scaled, X, Y) == nki.benchmark(nki.jit(scaled), X, Y)


def test_calls_of_a_jitted_function_trace_the_kernel_once() -> None:
    shapes = []

    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        shapes.append(x.shape)
        return stored(loaded(x))

    function = jax.jit(kernel)
    for scale in (1, 2):
        np.testing.assert_array_equal(function(scale * X), scale * X)
    assert shapes == [X.shape]


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1)], ids=["program", "dataflow"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_kernels(kernel: Callable[..., Tensor], order: core.Order | None) -> None:
    chip = "trainium3" if kernel in LATEST else "trainium2"
    result = nki.simulate(nki.jit(kernel), order, chip)(X, Y)
    np.testing.assert_allclose(result, KERNELS[kernel], rtol=1e-4, atol=1e-5)


def test_more_work_takes_longer() -> None:
    times = [
        nki.benchmark(nki.jit(softmax), *np.zeros((2, 128, width), np.float32)).total_ns
        for width in (64, 512, 4096)
    ]
    assert times == sorted(times)
    assert times[2] > 2 * times[0]


def test_a_kernel_is_a_function_of_jax_arrays(neuron_devices: list[jax.Device]) -> None:
    kernel = nki.jit(softmax)

    def function(x: jax.Array) -> jax.Array:
        return kernel(x * 2, x) + 1

    with jax.default_device(neuron_devices[0]):
        result = jax.jit(function)(X)
        mapped = jax.jit(jax.vmap(function))(np.stack([X, Y]))
    np.testing.assert_allclose(result, jax.nn.softmax(X * 2) + 1, rtol=1e-4)
    np.testing.assert_array_equal(mapped[0], result)


def test_lines_of_a_kernel_in_an_installed_library() -> None:
    """Libraries of Debian and of virtual environments lie in a folder of Python's own library."""
    file = f"{sysconfig.get_path('stdlib')}/site-packages/library/kernels.py"
    code = "def misspelt(x):\n    nisa.tensor_tensr(x)\n"
    names = {"nisa": nisa}
    exec(compile(code, file, "exec"), names)
    with pytest.raises(NeuronError, match=rf"{re.escape(file)}:2: nki.isa has no 'tensor_tensr'"):
        nki.jit(names["misspelt"]).trace(X)


INTEGERS = np.random.default_rng(1).integers(-(2**30), 2**30, (2, 128, 16), np.int32)


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum"])
def test_words_are_exact_where_no_engine_is_named(op: str) -> None:
    """NKI ISA, tensor_tensor: the default is GpSimd's integer arithmetic, unless a tile lies in
    PSUM."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        result = tile(x.shape, nl.int32)
        nisa.tensor_tensor(result, loaded(x), loaded(y), getattr(nl, op))
        return stored(result)

    with np.errstate(over="ignore"):
        expected = getattr(np, op)(*INTEGERS)
    np.testing.assert_array_equal(nki.simulate(kernel)(*INTEGERS), expected)


def test_words_in_psum_are_rounded_as_vector_does() -> None:
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        there = tile(x.shape, nl.int32, nl.psum)
        nisa.tensor_copy(there, loaded(x))
        nisa.tensor_tensor(there, there, loaded(y), nl.add)
        return stored(nl.copy(there))

    x, y = (number >> 1 for number in INTEGERS)
    result = nki.simulate(kernel)(x, y)
    np.testing.assert_allclose(result, x + y, rtol=0, atol=64)
    assert (result != x + y).any()


def test_reductions_of_reversed_operators() -> None:
    def kernel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        result, total = tile(x.shape), tile((x.shape[0], 1))
        nisa.tensor_scalar_reduce(result, loaded(x), nl.subtract, 3.0, nl.add, total, reverse0=True)
        return stored(result), stored(total)

    with pytest.warns(KernelWarning, match="documented as not supported yet"):
        result, total = nki.simulate(kernel)(X, Y)
    np.testing.assert_array_equal(result, 3 - X)
    expected = (3 - X.astype(np.float64)).sum(1, keepdims=True)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
