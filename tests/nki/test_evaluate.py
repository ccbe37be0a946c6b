"""`nki.evaluate`: kernels judged against references of numpy, and their counters against sums that
can be done by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import neuronxcc.nki as old_nki
import neuronxcc.nki.language as old_nl
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.gym.evaluation import json_text
from neuronjax.nki.tensor import Tensor
from tests.nki.kernels import loaded, stored, tile

X = np.random.default_rng(0).standard_normal((256, 64), np.float32)


@nki.jit
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for part in nl.affine_range(x.shape[0] // 128):
        rows = nl.ds(part * 128, 128)
        on_chip = loaded(x[rows])
        nisa.tensor_scalar(on_chip, on_chip, nl.multiply, factor)
        nisa.dma_copy(out[rows], on_chip)
    return out


@old_nki.jit
def scaled_before(x: Any, factor: float = 2.0) -> Any:
    out = old_nl.ndarray(x.shape, dtype=x.dtype, buffer=old_nl.shared_hbm)
    for part in old_nl.affine_range(x.shape[0] // 128):
        rows = part * 128 + old_nl.arange(128)[:, None]
        columns = old_nl.arange(x.shape[1])[None, :]
        old_nl.store(out[rows, columns], old_nl.load(x[rows, columns]) * factor)
    return out


@nki.jit
def updated(x: Tensor) -> None:
    on_chip = loaded(x[0:128])
    nisa.tensor_scalar(on_chip, on_chip, nl.add, 1.0)
    nisa.dma_copy(x[0:128], on_chip)


@nki.jit
def racing(x: Tensor) -> Tensor:
    """Both programs write the same rows, and other values."""
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, loaded(x[nl.ds(nl.program_id(0) * 128, 128)]))
    return out


@nki.jit
def product(a: Tensor, b: Tensor) -> Tensor:
    sums = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(sums, loaded(a), loaded(b))
    result = tile((128, 512))
    nisa.tensor_copy(result, sums)
    return stored(result)


@nki.jit
def too_large(x: Tensor) -> Tensor:
    return stored(tile((128, 1 << 20)))


@nki.jit
def raising(x: Tensor) -> Tensor:
    raise RuntimeError("the kernel's own")


def failing(*_: np.ndarray) -> np.ndarray:
    raise RuntimeError("the reference's own")


@pytest.mark.parametrize(
    ("kernel", "reference", "status", "words"),
    [
        (scaled, lambda x: 2 * x, "ok", ""),
        (scaled, 2 * X, "ok", ""),
        (scaled_before, lambda x: 2 * x, "ok", ""),
        (updated, lambda x: np.concatenate([x[:128] + 1, x[128:]]), "ok", ""),
        (scaled, lambda x: 2.001 * x, "wrong", "of 16384 elements are beyond"),
        (scaled, lambda x: 2 * x[:128], "wrong", "the shape is [256, 64], and that of the refer"),
        (scaled, lambda x: (2 * x, x), "wrong", "returns 1 arrays, and the reference 2"),
        (scaled, lambda x: np.where(x > 0, np.nan, 2 * x), "wrong", "not finite"),
        (racing[2], lambda x: x[:128], "race", "test_evaluate.py:"),
        (too_large, None, "refused", "test_evaluate.py:"),
        (raising, None, "failed", "RuntimeError: the kernel's own"),
        (scaled, failing, "failed", "RuntimeError: the reference's own"),
        (scaled, lambda x: 2j * x, "wrong", "the reference gives complex64; return real numbers"),
        (scaled, lambda x: np.full(x.shape, "2"), "wrong", "the reference gives str32;"),
        (scaled, lambda x: np.full(x.shape, failing), "wrong", "the reference gives object;"),
    ],
)
def test_status(kernel: Callable[..., Any], reference: Any, status: str, words: str) -> None:
    given = X.copy()
    evaluation = nki.evaluate(kernel, reference, [given])
    assert (evaluation.status, evaluation.is_ok) == (status, status == "ok"), evaluation.reason
    assert words in evaluation.reason
    assert status in str(evaluation)
    np.testing.assert_array_equal(given, X)


def test_both_dialects_count_the_same() -> None:
    new, old = (nki.evaluate(kernel, 3 * X, [X, 3.0]) for kernel in (scaled, scaled_before))
    assert new.counters["hbm_read_bytes"] == old.counters["hbm_read_bytes"] == X.nbytes
    assert new.counters["hbm_write_bytes"] == old.counters["hbm_write_bytes"] == X.nbytes
    # The compiler of the earlier one had Scalar multiply.
    assert old.instructions.keys() - new.instructions.keys() == {"activation"}
    assert sum(new.instructions.values()) == sum(old.instructions.values())


@pytest.mark.parametrize(("target", "peak"), [("trn1", 91.75e12), ("trn2", 78.6e12)])
def test_counters_of_a_product(target: str, peak: float) -> None:
    """2·M·N·K operations, each array once through HBM; `peak` is what AWS documents for a core's
    BF16: 2 · 128² · 2.8 GHz, and 79 TFLOP/s per physical core of Trn2."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((128, n)).astype(ml_dtypes.bfloat16) for n in (128, 512))
    expected = a.astype(np.float64).T @ b.astype(np.float64)
    evaluation = nki.evaluate(product, expected, {"a": a, "b": b}, target=target, rtol=1e-5)
    counters, times = evaluation.counters, evaluation.times
    assert evaluation.is_ok, evaluation.reason
    assert times is not None
    assert counters["hardware_flops"] == 2 * 128 * 128 * 512
    assert counters["transpose_flops"] == 0
    traffic = a.nbytes + b.nbytes + 4 * expected.size
    assert counters["hbm_read_bytes"] + counters["hbm_write_bytes"] == traffic
    assert counters["mm_arithmetic_intensity"] == pytest.approx(2 * 128 * 128 * 512 / traffic)
    utilisation = 2 * 128 * 128 * 512 / (times.device_ns * 1e-9) / peak
    assert counters["hfu_estimated_percent"] == pytest.approx(utilisation, rel=0.01)
    assert counters["spill_save_bytes"] == counters["spill_reload_bytes"] == 0
    assert evaluation.memories["psum"].used_bytes == 4 * 512
    assert evaluation.memories["sbuf"].used_bytes >= 2 * 128 + 2 * 512 + 4 * 512
    assert times.device_ns == nki.benchmark(product, a, b, target=target).total_ns
    assert times.distance >= 1


def test_lines_and_what_they_wait_for() -> None:
    evaluation = nki.evaluate(scaled, None, [X])
    times = evaluation.times
    assert times is not None
    assert sum(line.time_ns for line in evaluation.lines) == pytest.approx(times.kernel_ns)
    multiply = next(line for line in evaluation.lines if _text(line.line).startswith("nisa.tensor"))
    (wait,) = multiply.waits_for
    assert wait.resource == "dma"
    assert "nisa.dma_copy(dst=on_chip" in _text(wait.line)
    assert 0 < wait.ns < times.kernel_ns


def _text(place: str) -> str:
    file, _, line = place.rpartition(":")
    with open(file) as lines:
        return lines.readlines()[int(line) - 1].strip()


def test_the_same_json_twice() -> None:
    def document() -> str:
        return json_text(nki.evaluate(scaled, np.full_like(X, np.nan), [X]).to_json())

    first = document()
    assert first == document()
    (values,) = json.loads(first)["values"]
    assert values["largest_error"] is None
    assert values["wrong"] == values["not_finite"] == X.size


@pytest.mark.parametrize(
    ("dtype", "error", "agrees"),
    [
        (np.float32, 5e-5, True),
        (np.float32, 5e-3, False),
        (ml_dtypes.bfloat16, 5e-3, True),
        (ml_dtypes.bfloat16, 0.1, False),
    ],
)
def test_bounds_fit_the_type(dtype: Any, error: float, agrees: bool) -> None:
    x = X.astype(dtype)
    expected = 2 * x.astype(np.float64) * (1 + error)
    assert nki.evaluate(scaled, expected, [x]).is_ok == agrees
    assert nki.evaluate(scaled, expected, [x], rtol=0.2).is_ok


@nki.jit
def repeated(x: Tensor, times: Tensor) -> Tensor:
    on_chip = loaded(x)
    for _ in nl.dynamic_range(nisa.register_alloc(loaded(times))):
        nisa.tensor_scalar(on_chip, on_chip, nl.add, 1.0)
    return stored(on_chip)


def test_a_time_that_depends_on_data_says_what_it_assumes() -> None:
    evaluation = nki.evaluate(repeated, X[:128] + 3, [X[:128], np.full((1, 1), 3, np.int32)])
    assert evaluation.is_ok, evaluation.reason
    (assumed,) = evaluation.assumed
    assert assumed.endswith(": 1 trips")
