"""Functions of `nki.language`, beside numpy in FP64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate import core
from neuronjax.errors import NeuronError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

RNG = np.random.default_rng(2)
SHAPE = (32, 24)
X, Y = (RNG.uniform(-3, 3, SHAPE).astype(np.float32) for _ in range(2))
POSITIVE = np.abs(X) + np.float32(0.1)
INTEGERS, SHIFTS = (RNG.integers(0, 8, SHAPE).astype(np.int32) for _ in range(2))
PLACES = RNG.integers(0, 24, SHAPE).astype(np.uint32)
COLUMN = RNG.uniform(0.5, 2, (32, 1)).astype(np.float32)
ODD = np.array([[-7.5, -2, -0.25, 0, 0.5, 1.5, 2.5, 3e9, -3e9, 8388609, 1e30, -0.75]] * 32)
ARRAYS = {
    "x": X, "y": Y, "positive": POSITIVE, "integers": INTEGERS, "shifts": SHIFTS,
    "places": PLACES, "column": COLUMN, "odd": ODD.astype(np.float32),
}  # fmt: skip
W = SimpleNamespace(
    **{
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in ARRAYS.items()
    }
)
"""The arguments for numpy."""
TANH, SIGMOID = math.sqrt(2 / math.pi), 1.702


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


erf = np.vectorize(math.erf)


def cdf(x: np.ndarray) -> np.ndarray:
    return (1 + erf(x / math.sqrt(2))) / 2


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def silu_dx(x: np.ndarray) -> np.ndarray:
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


Compute = Callable[[Any], Any]
CASES: dict[str, tuple[Compute, Compute]] = {
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.x, t.y), name),
            functools.partial(lambda name, w: getattr(np, name)(w.x, w.y), name),
        )
        for name in (
            *("add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal"),
            *("greater", "greater_equal", "less", "less_equal", "divide"),
            *("logical_and", "logical_or", "logical_xor"),
        )
    },
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.x), name),
            functools.partial(lambda name, w: getattr(np, name)(w.x), name),
        )
        for name in (
            "abs",
            "square",
            "exp",
            "tanh",
            "sin",
            "cos",
            "arctan",
            "sign",
            "negative",
            "reciprocal",
        )
    },
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.positive), name),
            functools.partial(lambda name, w: getattr(np, name)(w.positive), name),
        )
        for name in ("log", "sqrt")
    },
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.odd), name),
            functools.partial(lambda name, w: getattr(np, name)(w.odd.astype(np.float32)), name),
        )
        for name in ("floor", "ceil", "trunc")
    },
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.integers, t.shifts), name),
            functools.partial(lambda name, w: getattr(np, name)(w.integers, w.shifts), name),
        )
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
    },
    **{
        name: (
            functools.partial(lambda name, t: getattr(nl, name)(t.x, 1, keepdims=True), name),
            functools.partial(lambda name, w: getattr(np, name)(w.x, 1, keepdims=True), name),
        )
        for name in ("sum", "max", "min", "mean", "prod", "var")
    },
    "tan": (lambda t: nl.tan(nl.multiply(t.x, 0.25)), lambda w: np.tan(w.x / 4)),
    "invert": (lambda t: nl.invert(t.integers), lambda w: ~w.integers),
    "power": (lambda t: nl.power(t.positive, t.y), lambda w: w.positive**w.y),
    "abs_max": (lambda t: nl.abs_max(t.x, t.y), lambda w: np.maximum(abs(w.x), abs(w.y))),
    "abs_min": (lambda t: nl.abs_min(t.x, t.y), lambda w: np.minimum(abs(w.x), abs(w.y))),
    "rsqrt": (lambda t: nl.rsqrt(t.positive), lambda w: w.positive**-0.5),
    "logical_not": (lambda t: nl.logical_not(nl.less(t.x, 0.0)), lambda w: w.x >= 0),
    "sigmoid": (lambda t: nl.sigmoid(t.x), lambda w: sigmoid(w.x)),
    "relu": (lambda t: nl.relu(t.x), lambda w: np.maximum(w.x, 0)),
    "gelu": (lambda t: nl.gelu(t.x), lambda w: w.x * cdf(w.x)),
    "gelu_dx": (lambda t: nl.gelu_dx(t.x), lambda w: cdf(w.x) + w.x * normal(w.x)),
    "gelu_apprx_tanh": (
        lambda t: nl.gelu_apprx_tanh(t.x),
        lambda w: w.x / 2 * (1 + np.tanh(TANH * (w.x + 0.044715 * w.x**3))),
    ),
    "gelu_apprx_sigmoid": (
        lambda t: nl.gelu_apprx_sigmoid(t.x),
        lambda w: w.x * sigmoid(SIGMOID * w.x),
    ),
    "gelu_apprx_sigmoid_dx": (
        lambda t: nl.gelu_apprx_sigmoid_dx(t.x),
        lambda w: silu_dx(SIGMOID * w.x),
    ),
    "silu": (lambda t: nl.silu(t.x), lambda w: w.x * sigmoid(w.x)),
    "silu_dx": (lambda t: nl.silu_dx(t.x), lambda w: silu_dx(w.x)),
    "softplus": (lambda t: nl.softplus(t.x), lambda w: softplus(w.x)),
    "mish": (lambda t: nl.mish(t.x), lambda w: w.x * np.tanh(softplus(w.x))),
    "erf": (lambda t: nl.erf(t.x), lambda w: erf(w.x)),
    "erf_dx": (
        lambda t: nl.erf_dx(t.x),
        lambda w: 2 / math.sqrt(math.pi) * np.exp(-w.x * w.x),
    ),
    "copy": (lambda t: nl.copy(t.x), lambda w: w.x),
    "where": (
        lambda t: nl.where(nl.greater(t.x, t.y), t.x, 2.0),
        lambda w: np.where(w.x > w.y, w.x, 2.0),
    ),
    "dropout": (lambda t: nl.dropout(t.x, 1.0), lambda w: 0 * w.x),
    "broadcast_to": (
        lambda t: nl.copy(nl.broadcast_to(t.column, SHAPE)),
        lambda w: np.broadcast_to(w.column, SHAPE),
    ),
    "expand_dims": (lambda t: nl.copy(nl.expand_dims(t.x, 1)), lambda w: w.x[:, None]),
    "all": (lambda t: nl.all(nl.less(t.x, 2.9), 1), lambda w: (w.x < 2.9).all(1)),
    "softmax": (lambda t: nl.softmax(t.x, 1), lambda w: softmax(w.x)),
    "rms_norm": (
        lambda t: nl.rms_norm(t.x, t.y, 1, n=24, epsilon=1e-3),
        lambda w: w.x / np.sqrt((w.x**2).mean(1, keepdims=True) + 1e-3) * w.y,
    ),
    "transpose": (lambda t: nl.copy(nl.transpose(t.x)), lambda w: w.x.T),
    "matmul": (
        lambda t: nl.copy(nl.matmul(t.x, t.y, transpose_x=True)),
        lambda w: w.x.T @ w.y,
    ),
    "gather_flattened": (
        lambda t: nl.gather_flattened(t.x, t.places),
        lambda w: np.take_along_axis(w.x, w.places.astype(int), 1),
    ),
    "zeros": (lambda t: nl.zeros((4, 3), nl.bfloat16), lambda w: np.zeros((4, 3))),
    "ones": (lambda t: nl.ones((4, 3), "int32"), lambda w: np.ones((4, 3))),
    "full": (lambda t: nl.full((4, 3), 2.5, np.float32), lambda w: np.full((4, 3), 2.5)),
    "zeros_like": (lambda t: nl.zeros_like(t.x), lambda w: 0 * w.x),
    "shared_constant": (lambda t: nl.load(nl.shared_constant(X)), lambda w: w.x),
    "shared_identity_matrix": (
        lambda t: nl.shared_identity_matrix(5, nl.float32),
        lambda w: np.eye(5),
    ),
}
"""Function -> what a kernel computes with it, and what numpy does."""

MORE: dict[str, tuple[Compute, Compute]] = {
    "a number first": (lambda t: nl.subtract(1.0, t.x), lambda w: 1 - w.x),
    "a number divided": (lambda t: nl.divide(2.0, t.x), lambda w: 2 / w.x),
    "a column": (lambda t: nl.multiply(t.x, t.column), lambda w: w.x * w.column),
    "another dtype": (
        lambda t: nl.add(t.x, 1.0, dtype=nl.int32),
        lambda w: np.rint(w.x + 1),
    ),
    "not transposed": (
        lambda t: nl.copy(nl.matmul(t.x, nl.copy(nl.transpose(t.y)))),
        lambda w: w.x @ w.y.T,
    ),
    "views": (
        lambda t: nl.copy(t.x.reshape((32, 4, 6)).permute((0, 2, 1))[..., 1:3]),
        lambda w: w.x.reshape(32, 4, 6).transpose(0, 2, 1)[..., 1:3],
    ),
    "last two dimensions": (
        lambda t: nl.sum(t.x.reshape((32, 4, 6)), (1, 2)),
        lambda w: w.x.sum(1),
    ),
}
"""Arguments of other kinds, and views."""
ALL: dict[str, tuple[Compute, Compute]] = {**CASES, **MORE}


@nki.jit
def everything(*arrays: Tensor) -> tuple[Tensor, ...]:
    tiles = SimpleNamespace(**dict(zip(ARRAYS, map(nl.load, arrays), strict=True)))
    return tuple(stored(compute(tiles)) for compute, _ in ALL.values())


@functools.cache
def results(order: core.Order) -> dict[str, np.ndarray]:
    values = nki.simulate(everything, order)(*ARRAYS.values())
    return dict(zip(ALL, values, strict=True))


SUMS = {"matmul", "not transposed"}
SUM_BOUND = 32 * 2.0**-24 * (np.abs(W.x).T @ np.abs(W.y)).max()
"""Of the error of a sum of n products: n · u · Σ |x · y| (Higham, Accuracy and Stability, §3.1)."""

ORDERS = {"program": core.ProgramOrder(), "dataflow": core.DataflowOrder(seed=2)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ALL)
def test_functions(name: str, order: str) -> None:
    value, expected = results(ORDERS[order])[name], ALL[name][1](W)
    assert value.shape == expected.shape
    # A few dozen roundings to float32.
    rtol, atol = (0, SUM_BOUND) if name in SUMS else (3e-6, 3e-6)
    np.testing.assert_allclose(value.astype(np.float64), expected, rtol=rtol, atol=atol)


MADE_OTHERWISE = {"ndarray", "empty_like", "load", "load_transpose2d", "store", "rand",
                  "random_seed", "device_print"}  # fmt: skip
"""Functions with tests of their own below, or that every kernel uses."""


def test_every_function_has_a_case() -> None:
    functions = {name for name, value in nl.FUNCTIONS.items() if callable(value)}
    assert functions == {*CASES, *MADE_OTHERWISE}


@nki.jit
def random_twice(seed: Tensor) -> tuple[Tensor, Tensor]:
    drawn = []
    for _ in range(2):
        nl.random_seed(loaded(seed))
        drawn.append(nl.rand((128, 512), nl.float32))
    return stored(drawn[0]), stored(drawn[1])


def test_random_numbers() -> None:
    first, again = nki.simulate(random_twice)(np.array([[5]], np.int32))
    np.testing.assert_array_equal(first, again)
    assert abs(first.mean() - 0.5) < 5 * np.sqrt(1 / 12 / first.size)
    assert first.min() >= 0
    assert first.max() < 1


@nki.jit
def moved(x: Tensor) -> tuple[Tensor, Tensor]:
    scratch = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    copied = nl.empty_like(nl.load(x), dtype=nl.bfloat16)
    nisa.tensor_copy(copied, nl.load(x))
    nl.store(scratch, nl.load(x))
    assert nl.is_hbm(scratch.buffer)
    assert nl.is_hbm(x.buffer)
    assert nl.is_sbuf(copied.buffer)
    assert nl.is_on_chip(copied.buffer)
    assert not nl.is_psum(copied.buffer)
    assert (nl.program_id(0), nl.num_programs(0), nl.program_ndim()) == (0, 1, 0)
    assert (copied.ndim, copied.size) == (2, 32 * 24)
    with nl.no_reorder():
        return stored(copied), stored(nl.load_transpose2d(scratch))


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float8_e4m3", "int32"])
def test_dtypes_of_numpy_are_the_same_keys(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert {dtype: 1}[getattr(nl, name)] == {getattr(nl, name): 1}[dtype]


def test_memories() -> None:
    rounded, turned = nki.simulate(moved)(X)
    np.testing.assert_allclose(rounded.astype(np.float32), X, rtol=2**-8)
    np.testing.assert_array_equal(turned, X.T)


def test_limits_of_tiles_are_those_of_the_chip() -> None:
    limits = []

    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        size = nl.tile_size
        limits.append((size.sbuf_size_bytes >> 20, size.psum_num_banks, size.sbuf_fmax_bytes))
        assert size.sbuf_fmax * 4 == size.total_available_sbuf_size == size.sbuf_fmax_bytes
        return stored(loaded(x))

    for chip in ("trainium2", "trainium3"):
        nki.simulate(kernel, target=chip)(X)
    # Neuron docs, architecture guides: 28 and 32 MiB of SBUF, 8 banks of PSUM.
    assert [(size, banks) for size, banks, _ in limits] == [(28, 8), (32, 8)]


def flat(x: Tensor) -> Tensor:
    return stored(nl.load(x).reshape((16, 48)))


def repeated(x: Tensor) -> Tensor:
    return stored(nl.add(nl.load(x), tile((32, 5))))


def of_numbers(x: Tensor) -> Tensor:
    return stored(nl.add(1.0, 2.0))


def over_partitions(x: Tensor) -> Tensor:
    return stored(nl.sum(nl.load(x), 0))


def misspelt(x: Tensor) -> Tensor:
    return stored(nl.sofmax(nl.load(x)))


def of_the_past(x: Tensor) -> Tensor:
    return stored(nl.load(x[nl.arange(32)]))


def printed_from_psum(x: Tensor) -> Tensor:
    nl.device_print("product", nl.matmul(nl.load(x), nl.load(x), transpose_x=True))
    return x


REFUSED: dict[Callable[..., Any], str] = {
    flat: r"test_language.py:\d+: reshape\(\(16, 48\)\) of a tensor float32\[32, 24\]",
    repeated: r"test_language.py:\d+: broadcast\(1, 24\) of a tensor float32\[32, 5\]",
    of_numbers: r"test_language.py:\d+: nl.add\(1.0, 2.0\) takes at least one tensor",
    over_partitions: r"test_language.py:\d+: cannot reduce axis=0 of a tensor with 2 dimensions",
    of_the_past: "nl.ds",
    printed_from_psum: r"test_language.py:\d+: device_print takes no tensor in PSUM; print nl.copy",
    misspelt: "Did you mean softmax",
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_what_is_refused(kernel: Callable[..., Any]) -> None:
    with pytest.raises((NeuronError, AttributeError), match=REFUSED[kernel]):
        nki.simulate(nki.jit(kernel))(X)


def test_constants_of_files(tmp_path: Path) -> None:
    file = str(tmp_path / "constant.npy")
    np.save(file, X)

    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        return stored(nl.add(nl.load(x), nl.load(nl.shared_constant(file))))

    np.testing.assert_array_equal(nki.simulate(kernel)(X), X + X)


@pytest.mark.parametrize("count", [2, 40, 128])
def test_one_partition_is_broadcast_to_others(count: int) -> None:
    @nki.jit
    def kernel(x: Tensor) -> Tensor:
        row = nl.broadcast_to(nl.load(x[0:1]), (count, x.shape[1]))
        return stored(nl.multiply(row, 2.0))

    np.testing.assert_array_equal(nki.simulate(kernel)(X), np.repeat(2 * X[:1], count, axis=0))


@nki.jit
def printed(x: Tensor) -> Tensor:
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for half in nl.affine_range(2):
        columns = nl.ds(12 * half, 12)
        part = nl.load(x[:, columns])
        nl.device_print("part is", part[0:2, 0:3])
        nl.store(out[:, columns], part)
    nl.device_print("x is", x[0, 0:4])
    return out


@pytest.mark.parametrize("run", [nki.simulate(printed), jax.jit(printed)], ids=["alone", "jit"])
def test_tensors_are_printed(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(32 * 24).reshape(32, 24).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(x), x)
    assert capsys.readouterr().out.splitlines() == [
        "part is [[0 1 2]", " [24 25 26]]",
        "part is [[12 13 14]", " [36 37 38]]",
        "x is [0 1 2 3]",
    ]  # fmt: skip
    assert nki.benchmark(printed, x).total_ns > 0
