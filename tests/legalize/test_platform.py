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


def run(folder: Path, run_python: RunPython, mode: str | None) -> tuple[str, list[str], list[str]]:
    script = folder / "job.py"
    script.write_text(SCRIPT)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_python(code, {"NEURONJAX_LEGALITY": mode})
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
    assert sum("LegalityWarning" in line for line in err) == 1


def test_off_is_silent(tmp_path: Path, run_python: RunPython) -> None:
    _, out, err = run(tmp_path, run_python, "off")
    assert (out, err) == (["(3,)", "(4,)", "3.0"], [])
