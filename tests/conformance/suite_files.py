"""Which files of JAX's own test-suite are run, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

EXCLUDED: dict[str, str] = {
    "pallas/*": "Pallas kernels have compilers for TPU and GPU only",
    "mosaic/*": "Mosaic is the kernel compiler of TPU and GPU",
    "mosaic_test.py": "Mosaic is the kernel compiler of TPU and GPU",
    "multiprocess/*": "starts several processes that share one GPU or TPU system",
    "multiprocess_gpu_test.py": "starts several processes that share one GPU system",
    "compilation_cache_test.py": "skips itself in setUp on platforms upstream does not list, after "
    "it has put a cache in place, which its own check of globals then counts as a failure",
    "filecheck/*": "scripts for LLVM's FileCheck, not tests of pytest",
    "third_party/*": "support modules, not tests",
}
"""Pattern of a path under tests/ to the reason why it is never run."""

FIRST = (
    "lax_test.py",
    "api_test.py",
    "array_test.py",
    "pmap_test.py",
    "nn_test.py",
    "random_test.py",
    "lax_control_flow_test.py",
    "shard_map_test.py",
    "pjit_test.py",
    "linalg_test.py",
    "fft_test.py",
    "dtypes_test.py",
    "memories_test.py",
    "layout_test.py",
    "aot_test.py",
    "export_test.py",
    "debugging_primitives_test.py",
    "python_callback_test.py",
    "profiler_test.py",
    "lax_numpy_test.py",
    "multi_device_test.py",
    "multibackend_test.py",
    "device_test.py",
    "custom_partitioning_test.py",
    "custom_api_test.py",
    "checkify_test.py",
    "debug_nans_test.py",
    "errors_test.py",
    "batching_test.py",
    "lax_autodiff_test.py",
    "lax_vmap_test.py",
    "lax_vmap_op_test.py",
    "lax_numpy_indexing_test.py",
    "lax_numpy_reducers_test.py",
    "lax_numpy_operators_test.py",
    "lax_numpy_einsum_test.py",
    "lax_numpy_ufuncs_test.py",
    "lax_numpy_setops_test.py",
    "lax_numpy_vectorize_test.py",
    "lax_scipy_test.py",
    "lax_scipy_sparse_test.py",
    "lax_scipy_special_functions_test.py",
    "scipy_stats_test.py",
    "random_lax_test.py",
    "mutable_array_test.py",
    "state_test.py",
    "hijax_test.py",
    "jax_jit_test.py",
    "stack_test.py",
    "transfer_guard_test.py",
    "buffer_callback_test.py",
    "ffi_test.py",
    "image_test.py",
    "ode_test.py",
    "optimizers_test.py",
    "stax_test.py",
    "svd_test.py",
    "eigh_test.py",
    "qdwh_test.py",
    "sparse_test.py",
    "xla_bridge_test.py",
    "xla_metadata_test.py",
    "ragged_collective_test.py",
    "async_collectives_test.py",
    "mesh_utils_test.py",
    "pickle_test.py",
    "extend_test.py",
    "clear_backends_test.py",
)
"""The files that say most about a backend, best first; the others follow by name."""


def excluded(name: str) -> str | None:
    """The reason why the file `name` (a path under tests/) is not run, or None."""
    return next((why for pattern, why in EXCLUDED.items() if fnmatch(name, pattern)), None)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def test_files(tests: Path, patterns: Sequence[str]) -> list[str]:
    """Paths under `tests` that match one of `patterns`, most telling first.

    Raises:
      FileNotFoundError: `tests` holds no lax_test.py, so it is no checkout of JAX.
    """
    if not (tests / "lax_test.py").is_file():
        raise FileNotFoundError(
            f"asked for JAX's tests in {tests}, found no lax_test.py there; "
            "give --jax_repo a checkout of jax-ml/jax at the tag of the installed jax"
        )
    names = (path.relative_to(tests).as_posix() for path in tests.rglob("*_test.py"))
    chosen = [name for name in names if _matches(name, patterns) and not excluded(name)]
    rank = {name: place for place, name in enumerate(FIRST)}
    return sorted(chosen, key=lambda name: (rank.get(name, len(FIRST)), name))
