"""Arguments and results of kernels: numbers, containers of arrays, and arrays written to."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder, Order
from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).standard_normal((128, 32), np.float32)


@dataclasses.dataclass(frozen=True)
class Affine:
    factor: float
    summand: float | None = None


@nki.jit
def affine(x: Tensor, how: Affine, dtype: Any = None, *, times: int = 1, name: str = "") -> Tensor:
    result = tile(x.shape, dtype or x.dtype)
    nisa.tensor_copy(result, loaded(x))
    for _ in range(times):
        nisa.tensor_scalar(result, result, nl.multiply, how.factor)
        if how.summand is not None:
            nisa.tensor_scalar(result, result, nl.add, how.summand)
    assert name in ("", "affine")
    return stored(result)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], np.ndarray]] = {
    "position": ((X, Affine(2.0)), {}, 2 * X),
    "keyword": ((), {"how": Affine(2.0, 1.0), "x": X, "name": "affine"}, 2 * X + 1),
    "int": ((X, Affine(2.0)), {"times": 3}, 8 * X),
    "dtype": ((X, Affine(2.0), nl.float16), {}, 2 * X.astype(np.float16)),
    "numpy dtype": ((X, Affine(2.0), np.float16), {}, 2 * X.astype(np.float16)),
    "None": ((X, Affine(0.5), None), {}, X / 2),
}


TARGETS = {
    None: "trainium2", "trn1": "trainium1", "gen2": "trainium1", "inf2": "inferentia2",
    "trn3": "trainium3", "trn2.48xlarge": "trainium2", "trainium3": "trainium3",
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_are_compiled_for_a_target(target: str | None) -> None:
    kernel = nki.jit(platform_target=target, mode="trace")(affine.function)
    chip = TARGETS[target]
    assert kernel.trace(X, Affine(2.0)).program.target.chip == chip
    assert affine.trace(X, Affine(2.0), target=target).program.target.chip == chip
    assert repr(kernel[2]) == "nki.jit(affine)[2]"


def test_options_that_do_not_exist() -> None:
    with pytest.raises(KernelError, match=r"no option 'platform_tarjet'. Did you mean platform_ta"):
        nki.jit(platform_tarjet="trn2")
    with pytest.raises(KernelError, match=r"nki.baremetal was removed from NKI: call the kernel"):
        nki.baremetal  # noqa: B018
    for statement in (
        "from neuronjax.nki import baremetal",
        "from neuronjax.nki.language import par_dim",
        "from neuronjax.nki.isa import unknown_engine",
    ):
        with pytest.raises(ImportError, match=r"was removed from NKI: (call|give|use) "):
            exec(statement)
    for decorator in (nki.benchmark, nki.profile):
        with pytest.raises(KernelError, match="as a decorator was removed from NKI: mark the"):
            decorator(warmup=2, iters=10)
    with pytest.raises(KernelError, match=r"nki has no 'simulat'. Did you mean simulate"):
        nki.simulat  # noqa: B018


@pytest.mark.parametrize("case", CALLS)
def test_what_is_no_array_is_known_when_the_kernel_is_traced(case: str) -> None:
    positional, keywords, expected = CALLS[case]
    result = nki.simulate(affine)(*positional, **keywords)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    assert nki.benchmark(affine, *positional, **keywords).total_ns > 0


def test_numbers_and_keywords_within_jit() -> None:
    result = jax.jit(lambda x: affine(x, how=Affine(2.0), times=2))(X)
    np.testing.assert_array_equal(result, 4 * X)


def test_other_parameters_are_named() -> None:
    with pytest.raises(KernelError, match=r"affine\(.*unexpected keyword argument"):
        nki.simulate(affine)(X, Affine(2.0), factor=2)


@nki.jit
def parts(pair: list[Tensor], rest: dict[str, Tensor]) -> Any:
    """Sum and difference, and a tuple that is nested."""
    left, right = (loaded(x) for x in pair)
    return {
        "sum": stored(nl.add(left, right)),
        "others": (stored(nl.subtract(left, right)), [stored(loaded(rest["z"]))]),
    }


def test_containers_of_arrays_and_results() -> None:
    def check(result: Any) -> None:
        np.testing.assert_array_equal(result["sum"], X + 1)
        difference, (copy,) = result["others"]
        np.testing.assert_array_equal(difference, X - 1)
        np.testing.assert_array_equal(copy, 2 * X)

    ones = np.ones_like(X)
    check(nki.simulate(parts)([X, ones], {"z": 2 * X}))
    check(jax.jit(parts)([X, ones], {"z": 2 * X}))


@nki.jit
def updated(cache: Tensor, x: Tensor, row: int) -> Tensor:
    nisa.dma_copy(cache[nl.ds(row, x.shape[0])], loaded(x))
    return cache


@nki.jit
def updated_only(cache: Tensor, x: Tensor) -> None:
    nisa.dma_copy(cache, loaded(x))


def test_arrays_that_a_kernel_writes_to() -> None:
    cache = np.zeros((256, 32), np.float32)
    result = nki.simulate(updated)(cache, X, 64)
    expected = np.zeros((256, 32), np.float32)
    expected[64:192] = X
    np.testing.assert_array_equal(cache, expected)
    np.testing.assert_array_equal(result, expected)
    half = expected[:128]
    assert nki.simulate(updated_only)(half, X) is None
    np.testing.assert_array_equal(half, X)

    before = jnp.zeros((256, 32))
    np.testing.assert_array_equal(jax.jit(updated, static_argnums=2)(before, X, 64), cache)
    assert not before.any()


def test_values_of_written_arrays_are_not_lost() -> None:
    fixed = np.zeros_like(X)
    fixed.flags.writeable = False
    with pytest.raises(KernelError, match=r"updated_only writes to cache, which is immutable"):
        nki.simulate(updated_only)(fixed, X)
    with pytest.raises(KernelError, match=r"updated_only writes to cache and does not return it"):
        jax.jit(updated_only)(X, X)


def kept(x: Tensor) -> Tensor:
    private = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(private, loaded(x))
    return private


def test_arguments_may_be_returned_as_they_are() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    kernel = nki.jit(lambda x, y: (y, x))
    for result in (nki.simulate(kernel)(fixed, X + 1), jax.jit(kernel)(fixed, X + 1)):
        np.testing.assert_array_equal(result[0], X + 1)
        np.testing.assert_array_equal(result[1], X)


@pytest.mark.parametrize("order", [None, DataflowOrder(seed=1, adversarial=True)], ids=str)
def test_private_memory_of_a_single_program_may_be_returned(order: Order | None) -> None:
    np.testing.assert_array_equal(nki.simulate(nki.jit(kept), order)(X), X)
    program = jax.jit(lambda x: (nki.jit(kept)(x + 1), nki.jit(kept)(x)))
    np.testing.assert_array_equal(program(X)[0], X + 1)
    np.testing.assert_array_equal(program(X)[1], X)


def test_results_are_whole_tensors_that_all_programs_have() -> None:
    with pytest.raises(UnsupportedProgramError, match="returns a tensor of private memory"):
        nki.simulate(nki.jit(kept)[2])(X)
    with pytest.raises(UnsupportedProgramError, match=r"returns 3; return whole tensors"):
        nki.simulate(nki.jit(lambda x: (stored(loaded(x)), 3)))(X)


NUMBERS = [np.float32(3), np.float64(3), np.int32(3), np.int64(3)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.dtype.name)
def test_numbers_of_numpy_are_numbers(number: np.generic) -> None:
    def kernel(x: Tensor, factor: Any) -> Tensor:
        on_chip = loaded(x)
        nisa.tensor_scalar(on_chip, on_chip, nl.multiply, factor)
        nisa.memset(on_chip[:, 0:1], number)
        return stored(on_chip)

    expected = 3 * X
    expected[:, 0] = 3
    for door in (nki.simulate(kernel), nki.jit(kernel)):
        np.testing.assert_array_equal(door(X, number), expected)


def test_integers_of_numpy_are_sizes_steps_and_masks() -> None:
    def kernel(x: Tensor) -> Tensor:
        size = np.int64(32)
        on_chip, sums = loaded(x[size : size + size]), nl.zeros((size, 1), x.dtype)
        nisa.nc_stream_shuffle(on_chip, on_chip, np.arange(32)[::-1])
        for _ in nl.affine_range(np.int64(2)):
            nisa.tensor_scalar(on_chip, on_chip, nl.add, 1.0)
        pattern = np.array([[x.shape[1], 32], [1, x.shape[1]]])
        nisa.tensor_reduce(sums, nl.add, on_chip.ap(pattern, offset=np.int32(0)), axis=np.int64(1))
        return stored(sums)

    expected = (X[32:64][::-1].astype(np.float64) + 2).sum(1, keepdims=True)
    np.testing.assert_allclose(nki.simulate(kernel)(X), expected, rtol=1e-5, atol=1e-5)


class Scaling:
    """An object with a kernel."""

    factor = 2.0

    @nki.jit
    def scaled(self, x: Tensor, more: float = 0.0) -> Tensor:
        on_chip = loaded(x)
        nisa.tensor_scalar(on_chip, on_chip, nl.multiply, self.factor, op1=nl.add, operand1=more)
        return stored(on_chip)

    @staticmethod
    @nki.jit
    def copied(x: Tensor) -> Tensor:
        return stored(loaded(x))


def test_methods_are_kernels() -> None:
    scaling = Scaling()
    for door in (scaling.scaled, nki.simulate(scaling.scaled), jax.jit(scaling.scaled)):
        np.testing.assert_array_equal(door(X), 2 * X)
    np.testing.assert_array_equal(scaling.copied(X), X)
    np.testing.assert_array_equal(Scaling.scaled(scaling, X), 2 * X)


def test_a_part_of_the_arguments_may_be_given_before() -> None:
    bound = functools.partial(Scaling().scaled, more=1.0)
    plain = functools.partial(Scaling.scaled.function, Scaling(), more=1.0)
    for kernel in (bound, plain):
        np.testing.assert_array_equal(nki.simulate(kernel)(X), 2 * X + 1)
        np.testing.assert_array_equal(nki.simulate(kernel)(X, more=2.0), 2 * X + 2)
    with pytest.raises(KernelError, match=r"test_calls.py:\d+: scaled\(.*too many positional"):
        nki.simulate(bound)(X, 2.0, 3.0)


EQUAL: list[tuple[Any, Any]] = [
    (nl.float32, "float32"),
    (nl.float32, np.float32),
    (nl.float32, np.dtype("float32")),
    (nl.bfloat16, jnp.bfloat16.dtype),
    (nl.int32, "int32"),
    (nl.int32, np.int32),
    (nl.bool_, np.bool_),
    (nl.float8_e4m3fn_x4, "float8_e4m3fn_x4"),
]
UNEQUAL: list[tuple[Any, Any]] = [
    (nl.float32, nl.bfloat16),
    (nl.float32, "bfloat16"),
    (nl.float32, np.int32),
    (nl.int32, nl.uint32),
    (nl.int32, "uint32"),
    (nl.float32, None),
    (nl.float8_e4m3fn_x4, nl.float32),
]


def test_dtypes_are_equal_to_what_stands_for_them() -> None:
    for dtype, other in EQUAL:
        assert dtype == other
        assert other == dtype
    for dtype, other in UNEQUAL:
        assert dtype != other
        assert other != dtype


def test_dtypes_of_tensors_are_among_names() -> None:
    def kernel(x: Tensor) -> Tensor:
        assert x.dtype in ("float32", nl.bfloat16)
        assert {nl.float32: 4}[x.dtype] == 4
        return stored(loaded(x))

    np.testing.assert_array_equal(nki.simulate(kernel)(X), X)


def test_bytes_in_another_order() -> None:
    swapped = X.astype(X.dtype.newbyteorder())

    def doubled(x: Tensor) -> Tensor:
        on_chip = loaded(x)
        nisa.tensor_scalar(on_chip, on_chip, nl.multiply, 2.0)
        nisa.dma_copy(x, on_chip)
        return x

    np.testing.assert_array_equal(nki.simulate(doubled)(swapped), 2 * X)
    np.testing.assert_array_equal(swapped, 2 * X)


def test_transfers_have_priorities_where_the_chip_has_them() -> None:
    def kernel(x: Tensor) -> Tensor:
        on_chip = tile(x.shape)
        nisa.dma_copy(on_chip, x, priority=0)
        return stored(on_chip)

    np.testing.assert_array_equal(nki.simulate(kernel, target="trn3")(X), X)
