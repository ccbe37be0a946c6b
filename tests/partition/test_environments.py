"""Programs over a mesh run under whatever settings of XLA and JAX a user has in the environment."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.conftest import HOST_DEVICES, RunPython
from tests.partition.test_programs import PROGRAMS, run

NAMES = ("tensor parallel", "scan", "all_to_all")

CODE = f"""\
import sys
import jax
import numpy as np
from tests.partition.test_programs import PROGRAMS, run

for index, name in enumerate({NAMES}):
    results = jax.device_get(run(PROGRAMS[name], jax.devices("neuron")))
    np.savez(f"RESULTS/{{index}}.npz", *results)
"""

DUMP = "--xla_dump_to=FOLDER"
XLA: dict[str, str] = {
    "dump of one module": f"{DUMP} --xla_dump_hlo_module_re=jit_train_step",
    "dump of a pipeline": f"{DUMP} --xla_dump_hlo_pipeline_re=none",
    "dump of a pass": f"{DUMP} --xla_dump_hlo_pass_re=.* --xla_dump_hlo_as_text",
    "dump of few modules": f"{DUMP} --xla_dump_max_hlo_modules=1",
    "dump of packed protos": f"{DUMP} --xla_dump_compress_protos=true --xla_dump_hlo_as_proto",
    "dump of graphs": f"{DUMP} --xla_dump_hlo_as_dot --xla_dump_hlo_as_html",
    "dump of values": f"{DUMP} --xla_dump_hlo_snapshots --xla_dump_include_timestamp=true",
    "dump into subfolders": f"{DUMP} --xla_dump_hlo_to_subfolder=true",
    "dump into a file": f"{DUMP}/taken",
    "no passes": "--xla_disable_all_hlo_passes=true",
    "no partitioner": "--xla_disable_hlo_passes=spmd-partitioning,shardy-xla",
    "one pass": "--xla_enable_hlo_passes_only=algsimp",
    "fast math": "--xla_cpu_enable_fast_math=true",
    "not optimized": "--xla_backend_optimization_level=0",
    "few host devices": "--xla_force_host_platform_device_count=3",
    "one thread": "--xla_cpu_multi_thread_eigen=false",
}
"""XLA_FLAGS of users; FOLDER is an empty folder, but for a file called ``taken``."""
JAX: dict[str, dict[str, str]] = {
    "programs as text": {"JAX_DUMP_IR_TO": "FOLDER", "JAX_DUMP_IR_MODES": "stablehlo,jaxpr"},
    "64 bits": {"JAX_ENABLE_X64": "1"},
    "NaNs": {"JAX_DEBUG_NANS": "1", "JAX_DEBUG_INFS": "1"},
    "tracer leaks": {"JAX_CHECK_TRACER_LEAKS": "1"},
    "transfer guard": {"JAX_TRANSFER_GUARD": "disallow"},
    "cache misses": {"JAX_EXPLAIN_CACHE_MISSES": "1", "JAX_LOG_COMPILES": "1"},
    "strict promotion": {"JAX_NUMPY_DTYPE_PROMOTION": "strict"},
    "rank promotion": {"JAX_NUMPY_RANK_PROMOTION": "warn"},
    "GSPMD": {"JAX_USE_SHARDY_PARTITIONER": "0"},
    "persistent cache": {
        "JAX_COMPILATION_CACHE_DIR": "FOLDER",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    },
    "no source": {
        "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "0",
        "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    },
    "high precision": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"},
}
"""Other variables of users."""
ENVIRONMENTS = {
    name: {"XLA_FLAGS": flags if "device_count" in flags else f"{flags} {HOST_DEVICES}"}
    for name, flags in XLA.items()
} | JAX
OFTEN = frozenset({"dump of one module", "no passes"})
"""What every test run tries; each takes a process."""


@pytest.fixture(scope="module")
def expected(neuron_devices: list[jax.Device]) -> list[list[np.ndarray]]:
    """What the programs compute under the settings of the tests."""
    return [[np.asarray(value) for value in run(PROGRAMS[name], neuron_devices)] for name in NAMES]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in ENVIRONMENTS],
)
def test_sharded_programs_run_as_without(
    name: str, expected: list[list[np.ndarray]], run_python: RunPython, tmp_path: Path
) -> None:
    folder, results = tmp_path / "folder", tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    (folder / "taken").touch()
    environment = {
        key: value.replace("FOLDER", str(folder)) for key, value in ENVIRONMENTS[name].items()
    }
    done = run_python(CODE.replace("RESULTS", str(results)), environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for index, values in enumerate(expected):
        found = np.load(results / f"{index}.npz")
        for value, theirs in zip(values, found.values(), strict=True):
            np.testing.assert_allclose(theirs, value, rtol=1e-5, atol=1e-5)
