"""Kernels that a chip would refuse, or that mean something else than they say, by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
from tests.nki.test_isa import X, Y, chained, scaled


def mistyped(x: Tensor, y: Tensor) -> Tensor:
    result = loaded(x)
    nisa.tensor_copy_predicated(result, loaded(y), loaded(x))
    return stored(result)


def misshapen(x: Tensor, y: Tensor) -> Tensor:
    result = tile((128, 95))
    nisa.tensor_tensor(result, loaded(x), loaded(y), nl.add)
    return stored(result)


def too_large(x: Tensor, y: Tensor) -> Tensor:
    result = tile((128, 1 << 20))
    nisa.memset(result, 0.0)
    return stored(result)


def too_many_partitions(x: Tensor, y: Tensor) -> Tensor:
    return stored(tile((256, 96)))


def unwritten(x: Tensor, y: Tensor) -> Tensor:
    return stored(tile((128, 96)))


def misspelt(x: Tensor, y: Tensor) -> Tensor:
    nisa.tensor_tensr(x, x, y, nl.add)
    return x


def named_as_a_string(x: Tensor, y: Tensor) -> Tensor:
    result = loaded(x)
    nisa.tensor_tensor(result, result, loaded(y), op="add")
    return stored(result)


def compared(x: Tensor, y: Tensor) -> Tensor:
    return stored(loaded(x if x > y else y))


def summed_by_python(x: Tensor, y: Tensor) -> Tensor:
    return stored(loaded(x) + 1)


def asked_for_truth(x: Tensor, y: Tensor) -> Tensor:
    return stored(loaded(x if x and loaded(y)[0:1, 0] else y))


def counted_to_a_tile(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(loaded(x)[0:1, 0]):  # type: ignore[call-overload]
        loaded(y)
    return x


def iterated_over(x: Tensor, y: Tensor) -> Tensor:
    for _ in x:  # type: ignore[attr-defined]
        loaded(y)
    return x


def assigned(x: Tensor, y: Tensor) -> Tensor:
    x[0:1] = y  # type: ignore[index]
    return x


def given_to_numpy(x: Tensor, y: Tensor) -> Tensor:
    return stored(np.exp(loaded(x)))  # type: ignore[call-overload]


def indexed_by_a_tile(x: Tensor, y: Tensor) -> Tensor:
    return stored(loaded(x)[:, loaded(y)])


def beyond_the_end(x: Tensor, y: Tensor) -> Tensor:
    return stored(loaded(x)[:, 90:100])


def of_half_a_shape(x: Tensor, y: Tensor) -> Tensor:
    return stored(nl.ndarray((128, x.shape[1] / 2), x.dtype))  # type: ignore[arg-type]


def of_an_unknown_dtype(x: Tensor, y: Tensor) -> Tensor:
    return stored(tile(x.shape, "float33"))


def in_an_unknown_memory(x: Tensor, y: Tensor) -> Tensor:
    return stored(nl.ndarray(x.shape, x.dtype, buffer="sbuff"))


def of_an_older_api(x: Tensor, y: Tensor) -> Tensor:
    return x[nl.arange(128)]


def with_a_dtype(x: Tensor, y: Tensor) -> Tensor:
    return stored(nisa.tensor_copy(loaded(x), dtype=nl.bfloat16))


def masked(x: Tensor, y: Tensor) -> Tensor:
    nisa.tensor_copy(tile(x.shape), loaded(x), mask=x.shape[0] < 64)
    return x


def at_a_dynamic_place(x: Tensor, y: Tensor) -> Tensor:
    nisa.tensor_copy_dynamic_dst(dst=tile(x.shape), src=loaded(x))
    return x


def without_a_place(x: Tensor, y: Tensor) -> Tensor:
    return stored(nisa.activation(nl.exp, loaded(x)))


def with_a_mask(x: Tensor, y: Tensor) -> Tensor:
    return stored(nl.load(x, mask=None))


def multiplied_into_sbuf(x: Tensor, y: Tensor) -> Tensor:
    on_chip = loaded(x)
    result = tile((x.shape[1], x.shape[1]))
    nisa.nc_matmul(result, on_chip, on_chip)
    return stored(result)


def without_results(x: Tensor, y: Tensor) -> None:
    loaded(x)


REFUSED: dict[Callable[..., Tensor | None], str] = {
    chained: r"test_isa.py:\d+: .*activate2 on NeuronCore-v3; allowed: NeuronCore-v4",
    mistyped: r"_kernels.py:\d+: .*predicate of float32; allowed: uint8",
    misshapen: r"_kernels.py:\d+: ",
    too_large: r"(?s)SBUF.*_kernels.py:\d+, through \S*kernels.py:\d+: scratch\d+ float32",
    too_many_partitions: (
        r"_kernels.py:\d+, through \S*kernels.py:\d+: scratch\d+ ends at partition 256"
    ),
    misspelt: r"_kernels.py:\d+: nki.isa has no 'tensor_tensr'. Did you mean tensor_tensor\?$",
    named_as_a_string: r"_kernels.py:\d+: nki.isa.tensor_tensor takes no op=.*such as nl.add",
    compared: r"_kernels.py:\d+: .*no operator of comparison, .*use nl.less",
    summed_by_python: r"_kernels.py:\d+: .*no operator \+, .*use nl.add",
    asked_for_truth: r"_kernels.py:\d+: .*float32\[1, 1\] in sbuf is neither true nor false",
    counted_to_a_tile: r"_kernels.py:\d+: .*is no number of Python.*use nisa.register_load",
    iterated_over: r"_kernels.py:\d+: .*cannot be iterated over.*use a loop over its indices",
    assigned: r"_kernels.py:\d+: .*takes no values by assignment.*use nl.store",
    given_to_numpy: r"_kernels.py:\d+: .*is no array of numpy.*use functions of nki.language",
    indexed_by_a_tile: r"_kernels.py:\d+: .*in sbuf is no index of a tensor; pass integers",
    beyond_the_end: r"_kernels.py:\d+: 90:100 is out of bounds for dimension 1, which has 96",
    of_half_a_shape: r"_kernels.py:\d+: \(128, 48.0\) is no shape of a tensor; pass a tuple",
    of_an_unknown_dtype: r"kernels.py:\d+: 'float33' is not an element type",
    in_an_unknown_memory: r"_kernels.py:\d+: 'sbuff' is no memory; pass one of nl.sbuf",
    of_an_older_api: r"_kernels.py:\d+: nki.language.arange was removed from NKI: index with",
    with_a_dtype: r"_kernels.py:\d+: nki.isa.tensor_copy.*results have the dtype of dst\.$",
    masked: r"_kernels.py:\d+: nki.isa.tensor_copy.*index what is meant with slices or nl.ds\.$",
    at_a_dynamic_place: r"_kernels.py:\d+: .*tensor_copy_dynamic_dst was removed.*use tensor_copy",
    without_a_place: r"_kernels.py:\d+: .*argument: 'data'\. It writes to dst, a tile",
    with_a_mask: r"_kernels.py:\d+: nki.language.load\(src, dtype\): .*argument 'mask'",
    multiplied_into_sbuf: r"_kernels.py:\d+: .*dst of nc_matmul in sbuf; allowed: psum .*and copy",
    without_results: r"_kernels.py:\d+: without_results returns no tensor and writes to none",
}


@pytest.mark.parametrize("order", [None, core.DataflowOrder(seed=1)], ids=["program", "dataflow"])
def test_what_nothing_has_written_is_poison(order: core.Order | None) -> None:
    """The chip reads it, too; so the kernel runs, and a warning says where."""
    kernel = nki.jit(unwritten)
    with pytest.warns(KernelWarning, match=r"kernels.py:\d+: .*no.*written"):
        result = nki.simulate(kernel, order)(X, Y)
    assert np.isnan(result).all()
    (note,) = kernel.trace(X, Y).notes
    assert re.search(r"kernels.py:\d+: .*nothing has been written; such values are", note)


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda kernel: kernel.__name__)
def test_what_the_chip_would_refuse(kernel: Callable[..., Tensor | None]) -> None:
    with pytest.raises(NeuronError, match=REFUSED[kernel]):
        nki.simulate(nki.jit(kernel))(X, Y)


def test_a_dtype_beside_dst() -> None:
    def narrowed(x: Tensor, dtype: Any) -> Tensor:
        out = tile(x.shape, nl.bfloat16)
        nisa.tensor_copy(dst=out, src=loaded(x), dtype=dtype)
        return stored(out)

    x = np.random.default_rng(0).standard_normal((128, 8), np.float32)
    expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(nki.simulate(narrowed)(x, nl.bfloat16), expected)
    with pytest.warns(KernelWarning, match=r"_kernels.py:\d+: dtype=float32 has no effect: dst is"):
        np.testing.assert_array_equal(nki.simulate(narrowed)(x, nl.float32), expected)


def test_what_no_kernel_can_be_called_with() -> None:
    kernel = nki.jit(scaled)
    with pytest.raises(
        NeuronError, match=r"kernels cannot run on target 'trn9'; choose from .*trn2"
    ):
        nki.simulate(kernel, target="trn9")(X, Y)
    with pytest.raises(NeuronError, match=r"scaled\(.*\).*: missing a required argument: 'y'"):
        kernel(X)
    with pytest.raises(NeuronError, match=r"scaled\(x\): 'float64' is not an element type"):
        kernel(X.astype(np.float64), Y)
