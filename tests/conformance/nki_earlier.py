"""Runs kernels of NKI 0.x that other projects wrote, unchanged, beside numpy.

  python -m tests.conformance.nki_earlier --sources=DIR [--only=TEXT] [--migrate]

DIR has a checkout of each project in a folder named like `ucb-bar+autocomp`, and nki-samples at
fc5c69f, its last commit with kernels of that dialect. Some files import PyTorch for their `main`;
`torch_xla` and `torch_neuronx`, which no machine without the chip has, are stand-ins.
"""

from __future__ import annotations

import inspect
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
from absl import app, flags

from neuronjax import nki
from neuronjax.nki.migration.migrating import migrate
from neuronjax.nki.migration.rewriting import UNRUN
from tests.conformance.nki_examples import load_module, mamba_scan, normal, pooled

_SOURCES = flags.DEFINE_string("sources", None, "Folder with the projects.", required=True)
_MIGRATE = flags.DEFINE_bool("migrate", False, "Translate the files, and run what comes of it.")
_ONLY = flags.DEFINE_string("only", "", "Only files whose names have this text.")

Arrays = tuple[np.ndarray, ...]
_BF16 = ml_dtypes.bfloat16
_RANDOM = np.random.default_rng(0)
_OF_FP32, _OF_BF16 = 1e-4, 3e-2
AGREES = "agrees"


@dataclass(frozen=True)
class Case:
    """A kernel of a file: the name, arguments, what numpy gives for these, and the grid."""

    kernel: str
    arguments: Callable[[], tuple[Any, ...]]
    expected: Callable[..., Any]
    grid: tuple[int, ...] = ()
    keywords: Mapping[str, Any] | None = None
    error: float = _OF_FP32


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.astype(np.float64).T @ right.astype(np.float64)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Of columns: q, k, v [d, n]."""
    scores = _softmax(q.astype(np.float64).T @ k.astype(np.float64))
    return scores @ v.astype(np.float64).T


def _scaled_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _attention(q / np.sqrt(len(q)), k, v)


def _attention_of_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _attention(q.T, k.T, v.T)


def _rms_norm(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True)) * weights


def _layer_norm(x: np.ndarray, epsilon: float, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon) * scale + shift


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *_: Any) -> np.ndarray:
    upper, lower = np.split(x, 2)
    return np.concatenate([upper * cos - lower * sin, lower * cos + upper * sin])


def _convolved(x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x [N, C, H, W], weights [O, C, h, w], without padding."""
    size = weights.shape[-2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights) + bias[:, None, None]


def _greatest_of_windows(x: np.ndarray, size: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size)).max((-2, -1))


def _eighths(*shapes: tuple[int, ...]) -> Arrays:
    return tuple(array / 8 for array in normal(*shapes)())


def _vectors(length: int) -> Callable[[], Arrays]:
    return normal((length, 1), (length, 1))


def _mlp(bias_of: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda left, right, bias: bias_of(_product(left, right) + bias)


def _steps() -> Arrays:
    delta, u, a, b, c = normal(
        (1, 256, 512), (1, 256, 512), (256, 16), (1, 16, 512), (1, 16, 512)
    )()
    return np.abs(delta) / 10, u, -np.abs(a), b, c


def _flat_steps() -> Arrays:
    delta, u, a, b, c = _steps()
    return delta[0], u[0], a, b[0], c[0]


def _flat_scan(*arrays: np.ndarray) -> np.ndarray:
    delta, u, a, b, c = arrays
    return mamba_scan(delta[None], u[None], a, b[None], c[None])[0]


def _evolved(state: np.ndarray, unitary: np.ndarray) -> np.ndarray:
    """Rows of a state times a matrix, both of a real and an imaginary part."""
    product = (state[0] + 1j * state[1]) @ (unitary[0] + 1j * unitary[1]).T
    return np.stack([product.real, product.imag])


def _doubled(x: np.ndarray) -> np.ndarray:
    """Twice as large in all dimensions but two, by linear interpolation."""
    for axis in range(2, x.ndim):
        edges = [(1, 1) if axis == other else (0, 0) for other in range(x.ndim)]
        wide = np.moveaxis(np.pad(x, edges, mode="edge"), axis, 0)
        pairs = np.stack([wide[:-2] / 4 + wide[1:-1] * 3 / 4, wide[1:-1] * 3 / 4 + wide[2:] / 4], 1)
        x = np.moveaxis(pairs.reshape(-1, *wide.shape[1:]), 0, axis)
    return x


def _convolved_by_channel(x: np.ndarray, weights: np.ndarray, padding: Any) -> np.ndarray:
    wide = np.pad(x, ((0, 0), (0, 0), *padding))
    windows = np.lib.stride_tricks.sliding_window_view(wide, weights.shape[-2:], axis=(2, 3))
    return np.einsum("nchwij,cij->nchw", windows, weights[:, 0])


def _causal(q: np.ndarray, k: np.ndarray, v: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    """Of rows q and v and columns k: values that are not divided by their sums; the kernel gives
    sums and maxima, too, which are not compared."""
    scores = q.astype(np.float64) @ k
    scores[np.triu_indices(len(q), 1)] = -np.inf
    return (np.exp(scores - scores.max(-1, keepdims=True)) @ v,)


def _gated(x: np.ndarray, up: np.ndarray, gate: np.ndarray, down: np.ndarray) -> np.ndarray:
    x, up, gate, down = (array.astype(np.float64) for array in (x, up, gate, down))
    gated = x @ gate
    return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


_CONVOLUTION = Case("fused_conv2d_maxpool", normal((2, 128, 6, 18), (128, 128, 3, 3), (128,)),
                    _convolved, error=1e-3)  # fmt: skip
_ASSIGNMENT = {
    "part1/kernels.py": [
        Case("vector_add_naive", _vectors(128), np.add),
        Case("vector_add_tiled", _vectors(12_800), np.add),
    ],
    "part2/conv2d.py": [_CONVOLUTION],
}
_MATRICES = normal((2048, 2048), (2048, 1024), dtype=_BF16)
_COLUMNS = normal((128, 512), (128, 512), (128, 512))
_MAMBAS = [Case(f"mamba_v{n}", _steps, mamba_scan, error=1e-3) for n in (1, 2, 3)]
_SAMPLES = "nki-samples/src/nki_samples"
_TUTORIAL = "ucb-bar+autocomp/harnesses/trn-tutorial-nki1"
_ADVANCED = "ucb-bar+autocomp/harnesses/trn-advanced-nki1"

CASES: Mapping[str, Sequence[Case]] = {
    **{f"Ericcsr+asst4-trainium/{file}": cases for file, cases in _ASSIGNMENT.items()},
    # Its other sums have tiles of 256 partitions, which the chip lacks.
    "robertpare17+asst4-trainium/part1/kernels.py": _ASSIGNMENT["part1/kernels.py"][:1],
    "robertpare17+asst4-trainium/part2/conv2d.py": [_CONVOLUTION],
    "robertpare17+asst4-trainium/part2/conv_2d_small.py": [_CONVOLUTION],
    "Ericcsr+asst4-trainium/part2/avgpool.py": [
        Case("tensor_avgpool_kernel_", lambda: (*normal((2, 8, 8))(), 2),
             lambda x, size: pooled(pooled(x, size, np.max), size, np.max)),
    ],
    "allenkchau+trainium-kernel-fusion/kernels/baseline/attention.py": [
        Case("baseline_attention", _COLUMNS, _attention, error=_OF_BF16)],
    "allenkchau+trainium-kernel-fusion/kernels/fused/attention.py": [
        Case("fused_attention", _COLUMNS, _attention, error=_OF_BF16)],
    "allenkchau+trainium-kernel-fusion/kernels/baseline/softmax.py": [
        Case("softmax_kernel", normal((256, 512)), _softmax)],
    "allenkchau+trainium-kernel-fusion/kernels/baseline/mlp_gemm.py": [
        Case("gemm_kernel", normal((256, 128), (256, 512), (1, 512)), _mlp(lambda x: x),
             error=1e-3)],
    "biquando+trainium-quantum-sim/src/hybrid.py": [
        Case("kernel", lambda: normal((2, 256, 128), (2, 128, 128))(), _evolved, error=1e-3)],
    "scttfrdmn+aws-trainium-tutorial-for-research/advanced/advanced_patterns_nki.py": [
        Case("flash_attention_kernel", lambda: (*normal((128, 64), (128, 64), (128, 64))(), 0.1),
             lambda q, k, v, scale: _attention_of_rows(scale * q, k, v), error=1e-3)],
    "AccelOpt/samples/nki/rope_optimized.py": [
        Case("kernel", normal((128, 4096), (64, 4096), (64, 4096)), _rotated)],
    **{f"AccelOpt/samples/nki/mamba_v{n}.py": [Case("kernel", arguments, expected, error=1e-3)]
       for n, arguments, expected in ((1, _flat_steps, _flat_scan), (2, _flat_steps, _flat_scan),
                                      (3, _flat_steps, _flat_scan))},
    f"{_SAMPLES}/tutorials/attention_fwd_performance/attention_kernels.py": [
        *(Case(f"attn_fwd_{n}", normal((128, 128), (128, 128), (128, 128)), _attention,
               error=_OF_BF16) for n in ("v1", "v2")),
        *(Case(f"attn_fwd_{n}", _COLUMNS, _attention, error=_OF_BF16)
          for n in ("v3", "v4", "v5", "v6", "v7", "v8"))],
    f"{_SAMPLES}/tutorials/average_pool2d/average_pool2d_nki_kernels.py": [
        Case("tensor_avgpool_kernel", lambda: (*normal((2, 6, 6))(), 2),
             lambda x, size: pooled(x, size, np.mean))],
    f"{_SAMPLES}/tutorials/fused_mamba/mamba_nki_kernels.py": _MAMBAS,
    f"{_SAMPLES}/tutorials/layernorm/layernorm_nki_kernel.py": [
        Case(f"nki_layernorm_kernel_v{n}",
             lambda: (normal((300, 1024))()[0], 1e-5, *normal((1024,), (1024,))()), _layer_norm,
             error=1e-3) for n in (1, 2)],
    f"{_SAMPLES}/tutorials/matrix_multiplication/matrix_multiplication_nki_kernels.py": [
        Case("nki_matmul_basic_", normal((128, 64), (128, 512), dtype=_BF16), _product,
             error=_OF_BF16),
        *(Case(f"nki_matmul_{n}_", _MATRICES, _product, error=_OF_BF16)
          for n in ("tiled", "hoist_load", "block_free_dimension", "fully_optimized"))],
    f"{_SAMPLES}/tutorials/rmsnorm/rmsnorm_nki_kernels.py": [
        Case("nki_rmsnorm_kernel", normal((250, 512), (512,)), _rms_norm)],
    f"{_SAMPLES}/tutorials/sd_attention/sd_attention_nki_kernels.py": [
        Case("fused_self_attn_for_SD_small_head_size", normal((512, 64), (512, 64), (512, 64)),
             lambda q, k, v: _attention_of_rows(q / 8, k, v), error=_OF_BF16)],
    f"{_SAMPLES}/tutorials/softmax/softmax_nki_kernels.py": [
        Case("nki_softmax_kernel", normal((256, 512)), _softmax)],
    f"{_SAMPLES}/tutorials/tensor_addition/spmd_tensor_addition_nki_kernels.py": [
        Case("nki_tensor_add_kernel_", normal((256, 1024), (256, 1024)), np.add, (2, 2))],
    f"{_SAMPLES}/tutorials/tensor_addition/tensor_addition_nki_kernels.py": [
        Case("nki_tensor_add_kernel_", normal((128, 512), (128, 512)), np.add)],
    f"{_SAMPLES}/tutorials/transpose2d/transpose2d_nki_kernels.py": [
        Case("tensor_transpose2D_kernel_", lambda: (normal((5, 12))()[0], (3, 4)),
             lambda x, shape: x.reshape(5, *shape).swapaxes(1, 2).reshape(5, 12))],
    f"{_SAMPLES}/reference/attention.py": [
        Case("fused_self_attn_for_SD_small_head_size",
             normal((1, 64, 512), (1, 512, 64), (1, 512, 64)),
             lambda q, k, v: _attention(q[0] / 8, k[0].T, v[0].T)[None], (1,), error=_OF_BF16)],
    f"{_SAMPLES}/reference/allocated_attention.py": [
        Case("allocated_fused_self_attn_for_SD_small_head_size",
             normal((1, 128, 2048), (1, 128, 2048), (1, 2048, 128)),
             lambda q, k, v: _attention(q[0] / 8, k[0], v[0].T).T[None], (1,), error=_OF_BF16)],
    f"{_SAMPLES}/reference/tutorial.py": [
        Case("add_kernel_nx8x128x512",
             lambda: (*normal((2, 8, 128, 512), (2, 8, 128, 512))(), 2 * 8 * 128 * 512),
             lambda a, b, _: a + b, (2,))],
    f"{_SAMPLES}/reference/vision.py": [
        Case("adaptive_avg_pool2d_kernel", lambda: (*normal((2, 128, 8, 8))(), (4, 4)),
             lambda x, _: x.reshape(2, 128, 4, 2, 4, 2).mean((3, 5))),
        Case("resize_nearest_fixed_dma_kernel", lambda: (*normal((2, 4, 4, 128))(), (2, 8, 8, 128)),
             lambda x, _: x.repeat(2, 1).repeat(2, 2), (2,))],
    "nki-samples/contributed/maxpooling.py": [
        Case("max_pooling_2d_stride_1", lambda: (*normal((160, 200))(), 3), _greatest_of_windows)],
    "nki-samples/contributed/interpolate_bilinear_fwd.py": [
        Case("interpolate_bilinear_2x_fwd", lambda: normal((1, 128, 8, 8))(), _doubled)],
    "nki-samples/contributed/interpolate_trilinear_fwd.py": [
        Case("interpolate_trilinear_2x_fwd", lambda: normal((1, 128, 4, 4, 4))(), _doubled)],
    "nki-samples/contributed/neuron-team-kernels/transpose.py": [
        Case("tiled_dve_transpose_10", normal((256, 384)), np.transpose)],
    f"{_TUTORIAL}/0_rmsnorm_test.py": [Case("ref", normal((512, 1024), (1024,)), _rms_norm)],
    f"{_TUTORIAL}/1_layernorm_test.py": [
        Case("nki_layernorm_kernel_v2",
             lambda: (normal((300, 1024))()[0], 1e-5, *normal((1024,), (1024,))()), _layer_norm,
             error=1e-3)],
    f"{_TUTORIAL}/2_gemm_test.py": [
        Case("nki_matmul_block_free_dimension_", _MATRICES, _product, error=_OF_BF16)],
    f"{_TUTORIAL}/3_mamba_test.py": [Case("mamba_v3", _steps, mamba_scan, error=1e-3)],
    f"{_TUTORIAL}/4_attention_test.py": [Case("ref", _COLUMNS, _attention, error=_OF_BF16)],
    f"{_TUTORIAL}/5_sdattention_test.py": [
        Case("ref", normal((512, 64), (512, 64), (512, 64)),
             lambda q, k, v: _attention_of_rows(q / 8, k, v), error=_OF_BF16)],
    "ucb-bar+autocomp/examples/trn-tutorial/1_gemm_opt.py": [
        Case("test", normal((4096, 1024), (4096, 2048), dtype=_BF16), _product, error=_OF_BF16)],
    f"{_ADVANCED}/0_cumsum_test.py": [
        Case("ref", normal((256, 2048)), lambda x: np.cumsum(x, -1), error=1e-3)],
    f"{_ADVANCED}/1_transpose_test.py": [
        Case("ref", lambda: (*normal((3, 256, 128))(), 1), lambda x, _: x.swapaxes(1, 2))],
    f"{_ADVANCED}/2_maxpool_test.py": [
        Case("ref", lambda: (*normal((160, 200))(), 3), _greatest_of_windows)],
    f"{_ADVANCED}/3_rope_test.py": [
        Case("ref", normal((128, 1024), (64, 1024), (64, 1024)), _rotated)],
    f"{_ADVANCED}/4_conv1d_test.py": [
        Case("ref", normal((2, 256, 1, 512), (256, 1, 1, 3)), _convolved_by_channel,
             keywords={"padding": ((0, 0), (1, 1))})],
    f"{_ADVANCED}/6_csa_2048_test.py": [
        Case("flash_attention_core",
             lambda: (*_eighths((2048, 128), (128, 2048), (2048, 128)), _BF16, np.float32),
             _causal, error=_OF_BF16)],
    **{f"ucb-bar+autocomp/harnesses/trn-e2e/{file}": [Case(kernel, arguments, expected,
                                                           error=_OF_BF16)]
       for file, kernel, arguments, expected in (
           ("0_llama_mlp_prefill.py", "nki_matmul_tiled_reference_", _MATRICES, _product),
           ("2_llama_mlp_decode.py", "nki_matmul_tiled_reference_", _MATRICES, _product),
           ("7_llama_logits_nki.py", "nki_matmul_tiled_reference_",
            normal((2048, 1), (2048, 1024), dtype=_BF16), _product),
           ("3_llama_mlp_decode_nki.py", "ref",
            normal((1, 1, 2048), (2048, 4096), (2048, 4096), (4096, 2048), dtype=_BF16), _gated),
           ("11_llama_mlp_decode_b32_nki.py", "solution",
            normal((32, 1, 2048), (2048, 4096), (2048, 4096), (4096, 2048), dtype=_BF16), _gated),
           ("13_llama_logits_b32_nki.py", "ref",
            normal((32, 1, 2048), (2048, 1024), dtype=_BF16),
            lambda x, w: x.astype(np.float64) @ w.astype(np.float64)))},
}  # fmt: skip


def outcome(kernel: Any, case: Case) -> str:
    """What came of a kernel: "agrees", by how much it differs, or the error."""
    arguments, keywords = case.arguments(), dict(case.keywords or {})
    try:
        given = nki.simulate(kernel[case.grid] if case.grid else kernel, target="trn1")(
            *arguments, **keywords
        )
    except Exception:
        return traceback.format_exc(limit=-1)
    wanted = case.expected(*arguments, **keywords)
    pairs = zip(given, wanted, strict=False) if isinstance(given, tuple) else [(given, wanted)]
    errors = [
        np.abs(np.float64(a).reshape(b.shape) - np.float64(b)).max() / np.abs(np.float64(b)).max()
        for a, b in pairs
    ]
    return AGREES if max(errors) < case.error else f"differs by {max(errors):.2g} of the largest"


def migrated(kernel: Any, case: Case) -> str:
    """What came of a kernel in the present dialect."""
    if case.grid:
        return "programs of a grid are not translated"
    file = Path(inspect.getsourcefile(inspect.unwrap(kernel.function)) or "")
    result = migrate(file, case.kernel, case.arguments(), dict(case.keywords or {}), "trn1")
    is_same = not result.failure and result.difference < case.error
    if not is_same or any(remark.text != UNRUN for remark in result.remarks):
        return result.report(file.name)
    return AGREES


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError("Pass --sources.")
    nki.install()
    for name in ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model", "torch_neuronx"):
        sys.modules[name] = MagicMock()
    chosen = {file: cases for file, cases in CASES.items() if _ONLY.value in file}
    agreed = Counter[str]()
    for file, cases in chosen.items():
        begun = time.process_time()
        try:
            module = load_module(Path(_SOURCES.value) / file)
            judged = migrated if _MIGRATE.value else outcome
            outcomes = [judged(getattr(module, case.kernel), case) for case in cases]
        except Exception:
            outcomes = [traceback.format_exc(limit=-1)]
        wrong = [text for text in outcomes if text != AGREES]
        agreed[file.partition("/")[0]] += not wrong
        seconds = time.process_time() - begun
        print(f"{file} {seconds:.0f} s: {wrong[0] if wrong else AGREES}", flush=True)
    totals = Counter(file.partition("/")[0] for file in chosen)
    for project, total in totals.items():  # rows of the table of docs/nki.md
        print(f"| {project.replace('+', '/')} | {agreed[project]} of {total} |")
    print(f"{agreed.total()} of {len(chosen)} files agree with numpy")


if __name__ == "__main__":
    app.run(main)
