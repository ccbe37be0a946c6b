"""What JAX knows of a lowered function."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.jaxlib_api import compile_options, mlir, tracing
from tests.conftest import RunPython

CLOSED_OVER = np.arange(3000.0, dtype=np.float32)


def function(used: jax.Array, dropped: jax.Array, power: int) -> jax.Array:
    return used[: CLOSED_OVER.size] ** power + jnp.asarray(CLOSED_OVER)


def test_facts_of_a_lowering() -> None:
    jitted = jax.jit(function, static_argnums=2)
    arguments = (np.zeros(4000, np.float32), np.zeros(5), 3)
    lowered = tracing.lower(jitted, arguments)
    facts = tracing.facts(lowered)
    constants = len(facts.constants)
    assert all(np.array_equal(each, CLOSED_OVER) for each in facts.constants)
    assert facts.devices == 1
    assert facts.kept_arguments == {*range(constants), constants}
    assert tracing.kept_arguments(lowered) == facts.kept_arguments
    assert [aval.shape for aval in facts.argument_avals][-1] == (4000,)
    assert not facts.ordered_effects
    assert tracing.static_arguments(jitted) == (2,)
    assert facts.compiler_options == {}
    with mlir.make_context():
        assert "@main" in str(facts.module)


def test_ordered_effects_are_known() -> None:
    ordered = jax.jit(lambda x: jax.debug.print("{}", x, ordered=True))
    assert tracing.facts(tracing.lower(ordered, (1.0,))).ordered_effects


def test_compile_options_of_a_lowering(cpu_devices: list[jax.Device]) -> None:
    mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,), devices=cpu_devices)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    jitted = jax.jit(
        lambda x, y: (x, y), in_shardings=(split, None), compiler_options={"xla_dump_to": ""}
    )
    facts = tracing.facts(tracing.lower(jitted, (np.zeros(8), np.zeros(8))))
    assert facts.propagate_to_parameters == (False, True)
    assert facts.propagate_to_results == (True, True)
    options = tracing.compile_options_of(facts)
    assert compile_options.shardings_propagated(options) == ([False, True], [True, True])
    assert options.executable_build_options.num_partitions == 8
    assert dict(options.env_option_overrides) == {"xla_dump_to": ""}


def test_a_value_of_another_trace_is_named_as_jax_names_it() -> None:
    kept: list[jax.Array] = []

    def remembering(x: jax.Array) -> jax.Array:
        kept.append(x * 2)
        return x + kept[0]

    jax.jit(remembering)(np.ones(4))
    with pytest.raises(jax.errors.UnexpectedTracerError, match="leaked intermediate value"):
        tracing.trace(jax.jit(lambda x: remembering(x)), (np.ones(4),))


def test_without_source_lines() -> None:
    def text() -> str:
        lowered = jax.jit(lambda x: x + 1).lower(1.0)
        return lowered.as_text(debug_info=True)

    assert __file__ in text()
    with tracing.without_source_lines():
        assert __file__ not in text()


def test_frames_of_a_folder_can_be_left_out(run_python: RunPython, tmp_path: Path) -> None:
    """In a process of its own, as it cannot be undone."""
    (tmp_path / "library.py").write_text("def added(x):\n    return x + 1\n")
    run_python(f"""
        import sys
        import jax
        from neuronjax.jaxlib_api import tracing

        sys.path.append({str(tmp_path)!r})
        import library

        def text():
            return jax.jit(lambda x: library.added(x)).lower(1.0).as_text(debug_info=True)

        assert "library.py" in text()
        for _ in range(2):
            tracing.leave_out_frames({str(tmp_path)!r})
        assert "library.py" not in text() and "<lambda>" in text()
    """)


def test_sizes_of_a_scan() -> None:
    def loop(w: jax.Array, x: jax.Array, rows: jax.Array) -> object:
        return jax.lax.scan(lambda c, row: ((c[0] * w + row, c[1] + 1), row), (x, 0), rows)

    (scan,) = jax.make_jaxpr(loop)(1.0, 2.0, jnp.ones(3)).eqns
    assert tracing.scan_sizes(scan.params) == (1, 2)
