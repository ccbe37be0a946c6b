"""Legality as a user of the platform meets it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import RunPython

SCRIPT = """\
import jax
import jax.numpy as jnp

@jax.jit
def f(x):
    return jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)

for x in (jnp.ones(3), jnp.ones(4)):
    try:
        print(f(x).shape)
    except jax.errors.JaxRuntimeError as error:
        print(error)
print(jax.jit(lambda x: x.sum())(jnp.ones(3)))
"""


def run(
    folder: Path,
    run_python: RunPython,
    mode: str | None,
    header: str = "",
    **env: str | None,
) -> tuple[str, list[str], list[str]]:
    script = folder / "job.py"
    script.write_text(SCRIPT)
    code = f"import runpy; {header} runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_python(code, {"NEURONJAX_LEGALITY": mode, "NEURONJAX_NUMERICS": None, **env})
    assert done.returncode == 0, done.stderr
    return str(script), done.stdout.splitlines(), done.stderr.splitlines()


def test_strict(tmp_path: Path, run_python: RunPython) -> None:
    script, out, err = run(tmp_path, run_python, "strict")
    refusal = [
        "INVALID_ARGUMENT: the program would not compile for trainium2 with Neuron SDK 2.32:",
        "  [NCC_EVRF001] An unsupported operator was used (lax.cond and lax.switch; stablehlo.case "
        f"at {script}:6). Compute both branches and choose with jnp.where (jax.lax.select).",
    ]
    assert out == [*refusal, *refusal, "3.0"]
    assert err == []


def test_warn_is_the_default_and_warns_once(tmp_path: Path, run_python: RunPython) -> None:
    script, out, err = run(tmp_path, run_python, None)
    assert out == ["(3,)", "(4,)", "3.0"]
    (warning, *_) = err
    assert warning.startswith(f"{script}:6: LegalityWarning: [NCC_EVRF001]")
    assert "NEURONJAX_LEGALITY" in warning
    assert sum("LegalityWarning" in line for line in err) == 1


def test_warnings_that_are_errors_are_logged(tmp_path: Path, run_python: RunPython) -> None:
    """Also what is said of variables, before there is a platform."""
    everything = {"PYTHONWARNINGS": "error", "NEURONJAX_TRAGET": "trn1.2xlarge"}
    script, out, err = run(tmp_path, run_python, None, **everything)
    assert out == ["(3,)", "(4,)", "3.0"]
    variable, finding = err
    assert variable.startswith("unknown variable NEURONJAX_TRAGET is ignored")
    assert finding.startswith("[NCC_EVRF001]")
    assert f"{script}:6" in finding


def test_warnings_can_be_filtered(tmp_path: Path, run_python: RunPython) -> None:
    ignore = (
        "import warnings, neuronjax;"
        "warnings.simplefilter('error');"
        "warnings.simplefilter('ignore', neuronjax.LegalityWarning);"
    )
    _, out, err = run(tmp_path, run_python, None, ignore)
    assert (out, err) == (["(3,)", "(4,)", "3.0"], [])


def test_off_is_silent(tmp_path: Path, run_python: RunPython) -> None:
    _, out, err = run(tmp_path, run_python, "off")
    assert (out, err) == (["(3,)", "(4,)", "3.0"], [])


INT64_SCRIPT = """\
import jax
import jax.numpy as jnp
import numpy as np

cube = jax.jit(lambda i: i * i * i)
print(cube(np.array([1 << 20, 1 << 21])), cube(np.arange(2)))
print(jax.random.uniform(jax.random.key(0), (2,)), jnp.frexp(jnp.arange(3.0))[1])
print(jax.jit(lambda x, i: x[2 * i - 1])(jnp.arange(9.0), np.arange(3)))
"""


def test_64_bit_integers_warn_where_they_may_lose(tmp_path: Path, run_python: RunPython) -> None:
    script = tmp_path / "job.py"
    script.write_text(INT64_SCRIPT)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    default = {"NEURONJAX_LEGALITY": None, "NEURONJAX_NUMERICS": None, "JAX_ENABLE_X64": "1"}
    done = run_python(code, default)
    on_cpu = run_python(code, {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"})
    assert done.stdout.splitlines()[0] == "[0 0] [0 1]"
    assert done.stdout.splitlines()[1:] == on_cpu.stdout.splitlines()[1:]
    told = [line for line in done.stderr.splitlines() if "[JAX_INT64]" in line]
    assert [line.partition(": ")[0] for line in told] == [f"{script}:5"]
