"""Runs the kernels of NKI's documentation and samples as they are, beside numpy.

  python -m tests.conformance.nki_examples --docs=DIR
  python -m tests.conformance.nki_examples --docs=DIR --samples=DIR

DIR are checkouts of aws-neuron/aws-neuron-sdk and aws-neuron/nki-samples. Samples that are not
among the cases are of versions of NKI that were removed.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from absl import app, flags

from neuronjax import nki

_DOCS = flags.DEFINE_string("docs", None, "Checkout of aws-neuron-sdk.")
_SAMPLES = flags.DEFINE_string("samples", None, "Checkout of nki-samples.")

Arrays = tuple[np.ndarray, ...]
_RANDOM = np.random.default_rng(0)
_OF_BF16, _OF_FP8 = 2e-2, 5e-2
"""Errors of results in BF16, relative to the largest, and of products of operands in FP8, whose
roundings are 3 % in the mean."""


@dataclass(frozen=True)
class Case:
    """Kernels of a file, called alike; `others` are arguments that are no arrays."""

    file: str
    kernels: str
    arrays: Callable[[], Arrays]
    expected: Callable[..., Any]
    others: tuple[Any, ...] = ()
    target: str = "trn2"
    error: float = _OF_BF16


def normal(*shapes: tuple[int, ...], dtype: Any = np.float32) -> Callable[[], Arrays]:
    return lambda: tuple(_RANDOM.standard_normal(shape).astype(dtype) for shape in shapes)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.astype(np.float64).T @ right.astype(np.float64)


def pooled(x: np.ndarray, size: int, reduce: Callable[..., np.ndarray]) -> np.ndarray:
    channels, height, width = x.shape
    blocks = x.reshape(channels, height // size, size, width // size, size)
    return reduce(blocks, axis=(2, 4))


def _turned(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return x.reshape(len(x), *shape).swapaxes(1, 2).reshape(len(x), -1)


def mamba_scan(
    delta: np.ndarray, u: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """delta and u [batch, channels, T], a [channels, states], b and c [batch, states, T]."""
    state = np.zeros((*delta.shape[:2], a.shape[1]))
    results = []
    for t in range(delta.shape[2]):
        step = delta[:, :, t, None]
        state = np.exp(step * a) * state + step * u[:, :, t, None] * b[:, None, :, t]
        results.append((state * c[:, None, :, t]).sum(-1))
    return np.stack(results, axis=-1)


def _blocks(columns: int) -> Arrays:
    """Words of four numbers in FP8 [128, columns], and exponents of eight rows [16, columns]."""
    numbers = _RANDOM.standard_normal((128, columns, 4)).astype(ml_dtypes.float8_e4m3fn)
    return numbers.view(np.uint32)[..., 0], _RANDOM.integers(125, 130, (16, columns), np.uint8)


def _numbers(words: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """[128, columns, 4] of such blocks."""
    numbers = words.view(ml_dtypes.float8_e4m3fn).reshape(*words.shape, 4).astype(np.float64)
    return numbers * np.exp2(exponents.repeat(8, axis=0) - 127.0)[..., None]


def _product_of_blocks(*operands: Any) -> np.ndarray:
    left, right = _numbers(*operands[:2]), _numbers(*operands[2:4])
    return np.einsum("pmk,pnk->mn", left, right)


def _product_with_unscaled(
    words: np.ndarray, exponents: np.ndarray, right: np.ndarray, *_: Any
) -> np.ndarray:
    numbers = right.astype(np.float64).reshape(128, -1, 4)
    return np.einsum("pmk,pnk->mn", _numbers(words, exponents), numbers)


_BF16 = ml_dtypes.bfloat16
_MATRICES = normal((2048, 2048), (2048, 1024), dtype=_BF16)
_TILES = normal((128, 64), (128, 512), dtype=_BF16)
_MAMBA = normal((1, 256, 512), (1, 256, 512), (256, 16), (1, 16, 512), (1, 16, 512))
_PRODUCTS = (
    "nki_matmul_tiled_ nki_matmul_hoist_load_ nki_matmul_block_free_dimension_ "
    "nki_matmul_fully_optimized_"
)


def _decaying() -> Arrays:
    delta, u, a, b, c = _MAMBA()
    return np.abs(delta) / 10, u, -np.abs(a), b, c


_SHARED: Mapping[str, Case] = {
    "product of tiles": Case("matrix_multiplication/matrix_multiplication_nki_kernels.py",
                             "nki_matmul_basic_", _TILES, _product),
    "products": Case("matrix_multiplication/matrix_multiplication_nki_kernels.py", _PRODUCTS,
                     _MATRICES, _product),
}  # fmt: skip
_OF_DOCS: Mapping[str, Case] = {
    **_SHARED,
    "first kernel": Case("getting_started_jax.py", "nki_tensor_add_kernel",
                         normal((4, 3), (4, 3), dtype=np.float16), np.add),
    "sum": Case("tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add",
                normal((256, 1024), (256, 1024)), np.add),
    "columns": Case("index-case-1.py", "tensor_split_kernel_", normal((4, 5)),
                    lambda x: (x[:, ::2], x[:, 1::2])),
    "greatest": Case("index-case-3.py", "tensor_maxpool_kernel_", normal((2, 6, 6)),
                     lambda x, size: pooled(x, size, np.max), (2,)),
    "exponential": Case("layout-pass.py", "tensor_exp_kernel_", normal((128, 512)), np.exp),
    "average": Case("average_pool2d/average_pool2d_nki_kernels.py", "tensor_avgpool_kernel",
                    normal((2, 6, 6)), lambda x, size: pooled(x, size, np.mean), (2,)),
    "transpose": Case("transpose2d/transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_",
                      lambda: (np.arange(60, dtype=np.int8).reshape(5, 12),), _turned, ((3, 4),)),
    "scan": Case("fused_mamba/mamba_nki_kernels.py", "mamba_v1 mamba_v2 mamba_v3", _decaying,
                 mamba_scan),
}  # fmt: skip
_OF_SAMPLES: Mapping[str, Case] = _SHARED
_WORDS = "float8_e4m3fn_x4"
_SCALED: Mapping[str, Case] = {
    "scaled blocks": Case("mx_kernels.py", "kernel_offline_quantized_mx_matmul",
                          lambda: (*_blocks(128), *_blocks(512)), _product_of_blocks, (_WORDS,),
                          "trn3"),
    "one of them scaled": Case("mx_kernels.py", "kernel_on_device_quantize_matmul_mx",
                               lambda: (*_blocks(128), *normal((128, 2048), dtype=_BF16)()),
                               _product_with_unscaled, (_WORDS, _WORDS), "trn3", _OF_FP8),
    "none of them scaled": Case("mx_kernels.py", "kernel_copy_strided_quantize_matmul_mx",
                                normal((512, 128), (512, 512), dtype=_BF16),
                                lambda a, b, _: _product(a, b), (_WORDS,), "trn3", _OF_FP8),
}  # fmt: skip


def load_module(file: Path) -> ModuleType:
    """A file as a module, which finds its neighbours."""
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


def _results(folder: Path, cases: Mapping[str, Case]) -> Iterator[tuple[str, str]]:
    """Each kernel, and what came of it."""
    for name, case in cases.items():
        try:
            module = load_module(folder / case.file)
        except Exception:
            yield f"{case.file}", traceback.format_exc(limit=-1)
            continue
        for kernel in case.kernels.split():
            yield f"{name}: {kernel}", _outcome(getattr(module, kernel), case)


def _outcome(kernel: Any, case: Case) -> str:
    arrays = case.arrays()
    try:
        given = nki.simulate(kernel, target=case.target)(*arrays, *case.others)
    except Exception:
        return traceback.format_exc(limit=-1)
    expected = case.expected(*arrays, *case.others)
    pairs = zip(given, expected, strict=True) if isinstance(given, tuple) else [(given, expected)]
    errors = [
        np.abs(np.float64(a) - np.float64(b)).max() / np.abs(np.float64(b)).max() for a, b in pairs
    ]
    return "passed" if max(errors) < case.error else f"differs by {max(errors):.2g} of the largest"


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1 or not (_DOCS.value or _SAMPLES.value):
        raise app.UsageError("Pass --docs or --samples.")
    nki.install()
    checkouts = (
        (_DOCS.value, "nki/examples", _OF_DOCS),
        (_DOCS.value, "nki/deep-dives/src/mxfp-matmul", _SCALED),
        (_SAMPLES.value, "src/nki_samples/tutorials", _OF_SAMPLES),
        (_SAMPLES.value, "src/nki_samples/tutorials/mxfp-matmul", _SCALED),
    )
    passed = total = 0
    for checkout, folder, cases in checkouts:
        if checkout is not None:
            for name, outcome in _results(Path(checkout) / folder, cases):
                print(f"{name:50} {outcome}", flush=True)
                passed, total = passed + (outcome == "passed"), total + 1
    print(f"{passed} of {total} kernels agree with numpy")
    sys.exit(passed != total)


if __name__ == "__main__":
    app.run(main)
