"""Kernels in programs for the platform: the compiler's custom call, with the emulator's values."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import neuronjax
from neuronjax import nki
from neuronjax.emulate.core import DataflowOrder
from neuronjax.emulate.element_types import Rounding
from neuronjax.errors import KernelError, MemoryAccessError, NeuronError, RaceError
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl
from neuronjax.nki.tensor import Tensor
from neuronjax.options import Options
from neuronjax.profiling.places import placed
from neuronjax.runtime.engine import Runs
from tests.conftest import RunPython
from tests.lower.differential import (
    completed,
    emulated,
    host_operations,
    lowered,
    run_on_host,
    sent,
)
from tests.nki import kernels
from tests.nki.kernels import loaded, stored, tile

TARGET = "AwsNeuronCustomNativeKernel"
KERNELS_FILE = kernels.__file__
X = np.random.default_rng(0).standard_normal((256, 8), np.float32)


@nki.jit
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    result = tile(x.shape, x.dtype)
    nisa.tensor_scalar(result, loaded(x), nl.multiply, factor)
    return stored(result)


@nki.jit
def updated(cache: Tensor, x: Tensor) -> Tensor:
    nisa.dma_copy(cache[nl.ds(128, 128)], loaded(x))
    return cache


@nki.jit
def turned(x: Tensor) -> tuple[Tensor, ...]:
    """A result in another shape than that in which it was declared."""
    return scaled(x).reshape((x.shape[1], x.shape[0])), scaled(x, 3.0)


@jax.custom_vjp
def differentiable(x: jax.Array) -> Any:
    return scaled(x)


differentiable.defvjp(lambda x: (scaled(x), None), lambda _, g: (scaled(g, 3.0),))


def rounds(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, _: (scaled(carry), None), x, None, length=3)[0]


HALF = X[:128]
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], np.ndarray]] = {
    "jit": (lambda x: scaled(x + 1) - 1, (HALF,), 2 * (HALF + 1) - 1),
    "vmap": (jax.vmap(scaled), (X.reshape(2, 128, 8),), 2 * X.reshape(2, 128, 8)),
    "scan": (rounds, (HALF,), 8 * HALF),
    "gradient": (
        jax.grad(lambda x: differentiable(x).sum()),
        (HALF,),
        np.full_like(HALF, 3),
    ),
    "another shape": (lambda x: turned(x)[0] + 1, (HALF,), 2 * HALF.reshape(8, 128) + 1),
    "written argument": (updated, (np.zeros_like(X), HALF), np.concatenate([0 * HALF, HALF])),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_custom_calls_with_the_values_of_the_emulator(case: str) -> None:
    function, arguments, expected = CASES[case]
    jitted = jax.jit(function)
    assert TARGET in jitted.lower(*arguments).as_text()
    np.testing.assert_array_equal(jitted(*arguments), expected)


@nki.jit
def halves(x: Tensor) -> Tensor:
    """Each program of a grid scales its rows."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.ds(nl.program_id(0) * 128, 128)
    scaled_rows = tile((128, x.shape[1]), x.dtype)
    nisa.dma_copy(scaled_rows, x[rows])
    nisa.tensor_scalar(scaled_rows, scaled_rows, nl.multiply, 2.0)
    nisa.dma_copy(result[rows], scaled_rows)
    return result


@nki.jit
def written_by_both(x: Tensor, scale: int) -> Tensor:
    """Both programs write all of the result, multiplied by `scale` to the power of their number."""
    result, rows = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), loaded(x)
    nisa.tensor_scalar(rows, rows, nl.multiply, float(scale ** nl.program_id(0)))
    nisa.dma_copy(result, rows)
    return result


@nki.jit
def counted(x: Tensor, times: Tensor) -> Tensor:
    """x doubled as often as the value of `times` says."""
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(times))
    result = loaded(x)
    for _ in nl.dynamic_range(register):
        nisa.tensor_scalar(result, result, nl.multiply, 2.0)
    return stored(result)


ENGINE_CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], np.ndarray]] = {
    **{case: CASES[case] for case in CASES if case != "gradient"},
    "called twice": (lambda x: scaled(scaled(x, 3.0) + x, 3.0), (HALF,), 3 * (3 * HALF + HALF)),
    "programs of a grid": (lambda x: halves[2](x + 1), (X,), 2 * (X + 1)),
    "registers": (
        lambda x, n: counted(x, n) + counted(x, n + 1),
        (HALF, np.full((1, 1), 2, np.int32)),
        12 * HALF,
    ),
}


@pytest.mark.parametrize("case", ENGINE_CASES)
def test_engines_run_kernels_as_a_part_of_the_program(case: str) -> None:
    function, arguments, expected = ENGINE_CASES[case]
    code = sent(jax.jit(function).trace(*arguments))
    program = completed(lowered(code, lnc=2))
    assert host_operations(program) == []
    for order in (None, DataflowOrder(0, adversarial=True)):
        (results,) = emulated(program, code, [arguments], order=order)
        np.testing.assert_array_equal(results[0], expected)


@pytest.mark.parametrize("scale", [1, 2])
def test_races_between_the_programs_of_a_kernel(scale: int) -> None:
    code = sent(jax.jit(lambda x: written_by_both[2](x + 1, scale)).trace(HALF))
    program = completed(lowered(code, lnc=2))
    assert host_operations(program) == []
    differs = pytest.raises(
        RaceError, match=r"s\.py:\d+\).*overwrites what .*s\.py:\d+\).*nothing orders the two"
    )
    with differs if scale > 1 else contextlib.nullcontext():
        emulated(program, code, [(HALF,)], order=DataflowOrder(0))


def test_what_jax_says_about_a_kernel() -> None:
    assert "function=scaled\n" in str(jax.make_jaxpr(scaled)(HALF))
    assert "function=halves[2]\n" in str(jax.make_jaxpr(halves[2])(X))
    with pytest.raises(KernelError, match=r"scaled has no derivative.*jax\.custom_vjp"):
        jax.grad(lambda x: scaled(x).sum())(HALF)


def test_numbers_that_jax_makes_arrays_of() -> None:
    np.testing.assert_array_equal(jax.jit(scaled, static_argnames="factor")(HALF, 3.0), 3 * HALF)
    with pytest.raises(NeuronError, match=r"factor had no dimensions.*static_argnames"):
        jax.jit(scaled)(HALF, 3.0)


def test_estimates_have_the_time_and_the_lines_of_kernels() -> None:
    def function(x: jax.Array) -> Any:
        return scaled(x + 1) - 1

    estimate = neuronjax.estimate(function, jax.ShapeDtypeStruct(HALF.shape, HALF.dtype))
    alone = nki.benchmark(scaled, HALF).total_ns
    own = [kernel for kernel in estimate.kernels if "scaled" in kernel.operations]
    assert {kernel.source.rpartition(":")[0] for kernel in own} <= {__file__, KERNELS_FILE}
    assert 0.5 * alone < sum(kernel.time_ns for kernel in own) < 1.5 * alone
    assert not [line for line in estimate.assumed if "host" in line]


def test_lines_of_a_kernel_belong_to_the_name_scope_of_its_call() -> None:
    def function(x: jax.Array) -> Any:
        with jax.named_scope("first"):
            y = scaled(x)
        with jax.named_scope("second"):
            return scaled(y)

    program = completed(lowered(sent(jax.jit(function).trace(HALF))))
    calls = [place for _, place in placed(program) if "scaled" in place.name]
    parts = len(calls[0].kernel.parts)
    assert parts > 1
    assert [place.scopes for place in calls] == [("first",) * parts, ("second",) * parts]


MESH_CASES: dict[str, tuple[Callable[..., Any], P, np.ndarray]] = {
    "kernel": (scaled, P("x", "y"), 2 * X),
    "scan": (rounds, P("x", "y"), 8 * X),
    "reduced": (
        lambda x: jax.lax.psum(scaled(x), "y"),
        P("x"),
        2 * (X[:, :4] + X[:, 4:]),
    ),
}


@pytest.mark.parametrize("case", MESH_CASES)
def test_every_core_of_a_mesh_runs_its_own(case: str, neuron_devices: list[jax.Device]) -> None:
    function, out_specs, expected = MESH_CASES[case]
    mesh = jax.make_mesh((2, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=neuron_devices[:4])
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x", "y"), out_specs=out_specs))
    np.testing.assert_array_equal(mapped(X), expected)


@nki.jit
def by_way_of_memory(x: Tensor) -> Tensor:
    """x, which goes through a tensor of HBM that is a MiB large."""
    between = nl.ndarray((256, 1024), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(between[0:128, 0:8], loaded(x))
    return stored(loaded(between[0:128, 0:8]))


def test_memory_of_kernels_counts() -> None:
    needed = [
        jax.jit(function).lower(HALF).compile().memory_analysis().temp_size_in_bytes
        for function in (scaled, by_way_of_memory, lambda x: by_way_of_memory(by_way_of_memory(x)))
    ]
    assert needed[0] < 1 << 20 <= needed[1] <= needed[2] < 2 << 20


def test_donated_arrays_are_used_up() -> None:
    cache = jnp.zeros(X.shape)
    result = jax.jit(updated, donate_argnums=0)(cache, HALF)
    np.testing.assert_array_equal(result[128:], HALF)
    assert cache.is_deleted()


def test_exported_programs_carry_their_kernels(tmp_path: Path, run_python: RunPython) -> None:
    allowed = [export.DisabledSafetyCheck.custom_call(TARGET)]
    exported = export.export(jax.jit(scaled), platforms=["neuron"], disabled_checks=allowed)(HALF)
    (tmp_path / "program").write_bytes(exported.serialize())
    (tmp_path / "cache").mkdir()
    script = f"""
        import jax, numpy as np
        from pathlib import Path
        jax.config.update("jax_compilation_cache_dir", "{tmp_path}/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        program = jax.export.deserialize(Path("{tmp_path}/program").read_bytes())
        print(np.sum(jax.jit(program.call)(np.ones((128, 8), np.float32))))
    """
    for _ in ("compiled", "from the cache of compiled programs"):
        assert float(run_python(script).stdout) == 2 * 128 * 8
    assert any((tmp_path / "cache").iterdir())


def _for_the_device() -> str:
    config = {"func_name": "flash", "grid": [1], "has_collectives": False, "klir_binary": "/a.klir"}
    return base64.b64encode(json.dumps(config).encode()).decode()


REFUSED: dict[str, tuple[str, str]] = {
    "compiled for the device": (
        _for_the_device(),
        "runs the NKI kernel 'flash' as compiled for a device",
    ),
    "empty": ("", "needs an NKI kernel in backend_config"),
    "not base64": ("kernel", "needs an NKI kernel in backend_config"),
    "not JSON": (base64.b64encode(b"{").decode(), "needs an NKI kernel in backend_config"),
    "not an object": (base64.b64encode(b"[]").decode(), "needs an NKI kernel in backend_config"),
}


def called(config: str, shape: tuple[int, ...]) -> Callable[..., Any]:
    return jax.jit(
        jax.ffi.ffi_call(
            TARGET,
            jax.ShapeDtypeStruct(shape, np.float32),
            custom_call_api_version=2,
            legacy_backend_config=config,
        )
    )


@pytest.mark.parametrize("case", REFUSED)
def test_calls_without_a_kernel_are_refused(case: str) -> None:
    config, message = REFUSED[case]
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        called(config, HALF.shape)(HALF)


def test_calls_of_other_shapes_are_refused() -> None:
    config = scaled.trace(HALF).native.configuration()
    np.testing.assert_array_equal(called(config, HALF.shape)(HALF), 2 * HALF)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"has operands float32\[256, 8\] where scaled was comp"
    ):
        called(config, HALF.shape)(X)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"has results float32\[8\] where scaled was compiled for"
    ):
        called(config, (8,))(HALF)


@nki.jit
def picked(x: Tensor, row: Tensor) -> Tensor:
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(row))
    result = tile((1, x.shape[1]))
    nisa.dma_copy(result, x[nl.ds(register, 1)])
    return stored(result)


def test_errors_of_runs_have_the_lines_of_the_kernel() -> None:
    jitted = jax.jit(picked)
    np.testing.assert_array_equal(jitted(X, np.full((1, 1), 7, np.int32)), X[7:8])
    with pytest.raises(ValueError, match=r"test_in_programs\.py:\d+"):
        jitted(X, np.full((1, 1), 256, np.int32)).block_until_ready()


def test_errors_of_engines_have_the_lines_of_the_kernel() -> None:
    arguments = {"arg0": X, "arg1": np.full((1, 1), 7, np.int32)}
    program = completed(lowered(sent(jax.jit(picked).trace(*arguments.values()))))
    host: Any = run_on_host
    run = Runs(Options(), Rounding()).of(program, host)
    np.testing.assert_array_equal(run([arguments])[0]["res0"].reshape(1, 8), X[7:8])
    with pytest.raises(MemoryAccessError, match=r"test_in_programs\.py:\d+: .*dma_copy: src reach"):
        run([{**arguments, "arg1": np.full((1, 1), 256, np.int32)}])


@nki.jit
def half_written(x: Tensor, rows: Tensor) -> Tensor:
    """x gathered at `rows`, of which the second half is read although nothing has written it."""
    gathered, index = tile((128, 2 * x.shape[1])), loaded(rows)
    nisa.dma_copy(
        gathered[:, : x.shape[1]],
        x.ap([[x.shape[1], 128], [1, x.shape[1]]], 0, vector_offset=index),
    )
    return stored(gathered)


@pytest.mark.filterwarnings("ignore::neuronjax.errors.KernelWarning")
def test_a_run_finds_nothing_of_the_runs_before_also_of_one_that_failed() -> None:
    run = jax.jit(half_written)
    rows = np.arange(128, dtype=np.int32)[:, None]
    for attempt in range(3):
        x = X[:128] + attempt
        result = np.asarray(run(x, rows))
        np.testing.assert_array_equal(result[:, :8], x)
        assert np.isnan(result[:, 8:]).all()
        with pytest.raises(ValueError, match=r"row 128 .* out of bounds"):
            run(x, rows + 1).block_until_ready()


def test_calls_from_several_threads_keep_their_values_apart() -> None:
    run = jax.jit(scaled)
    inputs = [X[:128] + number for number in range(40)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda x: np.asarray(run(x)), inputs))
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, 2 * x)
