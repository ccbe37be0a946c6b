"""``neuronjax lint`` in processes of its own, and its reports."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from neuronjax.cli.lint_report import Report, as_json, text
from neuronjax.cli.scripts import Outcome
from neuronjax.hlo.location import Frame
from neuronjax.legalize.report import Finding
from neuronjax.legalize.rules import RULES
from tests import forked
from tests.conftest import PROJECT

SCRIPT = """\
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

def shout(x):
    print("executed")

@jax.jit
def step(x):
    io_callback(shout, None, x)                                     # line 12
    y = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)              # line 13
    return jax.lax.reduce_precision(y, 5, 2) @ jnp.ones((4, 4))     # line 14

@jax.jit
def accepted(x):
    return jax.nn.softmax(x @ x)

mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("core",))
spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("core"))
x = jax.device_put(jnp.ones((4, 4)), spec)
print("arguments", sys.argv[1:], len(jax.devices()), jax.default_backend())
print("results", accepted(x).sum(), jax.jit(lambda x: (x + 1).astype(jnp.float8_e4m3fn))(x)[0, 0])
if "step" in sys.argv:
    print("results", step(x).sum())
if "raise" in sys.argv:
    print(1 / int(x.sum() * 0))
if "wait" in sys.argv:
    while not x.sum() > 0:
        x = accepted(x)
if "elsewhere" in sys.argv:
    import neuronjax
    neuronjax.configure(target="trn1.2xlarge")
"""


def lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NEURON", "JAX", "XLA"))
    }
    return forked.run(
        ["-m", "neuronjax.cli", "lint", *arguments],
        env=environment | {"PYTHONPATH": str(PROJECT)},
        cwd=folder,
    )


def test_findings(tmp_path: Path) -> None:
    done = lint(tmp_path, "--format=json", "--severity=error", "job.py", "step", "--format=x")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["target"] == "trn2.3xlarge (LNC 2)"
    assert report["sdk"] == "2.32"
    assert report["script"] == {"path": "job.py", "error": None}
    assert report["programs"] >= 3
    job = str(tmp_path / "job.py")
    assert {(f["code"], f["file"], f["line"]) for f in report["findings"]} == {
        ("NCC_EVRF015", job, 12),
        ("NCC_EVRF001", job, 13),
        ("NCC_EVRF001", job, 14),
        ("NCC_EVRF051", job, 24),
    }
    assert "arguments ['step', '--format=x'] 4 neuron" in done.stderr
    assert done.stderr.count("results 0.0") == 2
    assert "executed" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py"]


FLAX = """\
import jax
import jax.numpy as jnp
import optax
from flax import nnx

model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

@nnx.jit
def train_step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss

print(train_step(model, optimizer, jnp.ones((3, 4))))
"""


@pytest.mark.parametrize(("given", "code"), [((), 0), (("--severity=warning",), 1)])
def test_warnings_are_reported_and_fail_if_asked(
    tmp_path: Path, given: tuple[str, ...], code: int
) -> None:
    """An ordinary Flax script, which draws its weights with Threefry."""
    (tmp_path / "flax_job.py").write_text(FLAX)
    done = lint(tmp_path, *given, "flax_job.py")
    assert done.returncode == code, done.stderr
    assert "warning  JAX_THREEFRY  flax_job.py:6" in done.stdout


def test_other_target(tmp_path: Path) -> None:
    target = "--target=trn3-gen1-ultraserver"
    done = lint(tmp_path, target, "--severity=error", "job.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("job.py: ")
    assert "programs for trn3-gen1-ultraserver (LNC 2), Neuron SDK 2.32\n" in done.stdout
    assert done.stdout.endswith("\n\nnothing found\n")


def test_script_that_raises(tmp_path: Path) -> None:
    done = lint(tmp_path, "--severity=error", "job.py", "raise")
    assert done.returncode == 2
    assert "job.py:24" in done.stdout
    assert "The script failed: it raised ZeroDivisionError" in done.stdout
    assert "every result is zero" in done.stdout
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "neuronjax/cli" not in done.stderr


def test_script_that_does_not_end(tmp_path: Path) -> None:
    done = lint(tmp_path, "--timeout=5", "job.py", "wait")
    assert done.returncode == 2
    assert "it did not end within 5 seconds" in done.stdout


def test_scripts_cannot_change_the_target_afterwards(tmp_path: Path) -> None:
    done = lint(tmp_path, "--severity=error", "job.py", "elsewhere")
    assert done.returncode == 2
    assert "configure was called after the neuron platform had started" in done.stdout


# Reports


def finding(what: str, file: str | None, line: int, detail: str = "") -> Finding:
    (rule,) = (rule for rule in RULES if rule.what == what)
    frame = Frame("step", file, line) if file else None
    return Finding(rule, sorted(rule.ops)[0] if rule.ops else "stablehlo.add", frame, detail)


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    return Report(
        target="trn2.3xlarge (LNC 2)",
        sdk="2.32",
        programs=3,
        findings=[
            finding("FFT", str(tmp_path / "job.py"), 7),
            finding("FFT", str(tmp_path / "deep" / "net.py"), 19),
            finding("jax.random.randint", "/elsewhere/lib.py", 4),
            finding("reduce_precision", None, 0),
        ],
        outcome=Outcome("job.py", None),
    )


def test_text(report: Report) -> None:
    assert (
        text(report)
        == """\
job.py: 3 programs for trn2.3xlarge (LNC 2), Neuron SDK 2.32

error    NCC_EVRF001  job.py:7             FFT
error    NCC_EVRF001  deep/net.py:19       FFT
warning  JAX_RANDINT  /elsewhere/lib.py:4  jax.random.randint
error    NCC_EVRF001  unknown source       reduce_precision

[NCC_EVRF001] FFT: An unsupported operator was used. Compute it on the host, or as a matrix product
    with a DFT matrix.
[JAX_RANDINT] jax.random.randint: jax.random.randint does not produce the expected distribution. Run
    it on the CPU, or round a uniform number down.
[NCC_EVRF001] reduce_precision: An unsupported operator was used. Convert to the narrow type and
    back (astype).

3 errors, 1 warning
"""
    )


@pytest.mark.parametrize(
    ("programs", "error", "said"),
    [
        (0, None, "No program was compiled for platform neuron"),
        (0, "it raised ValueError: broken", "it raised ValueError: broken"),
        (1, "it raised ValueError: broken", "it raised ValueError: broken"),
        (1, None, "nothing found"),
    ],
)
def test_nothing_was_found_only_if_all_was_looked_at(
    programs: int, error: str | None, said: str
) -> None:
    report = text(Report("trn2.3xlarge", "2.32", programs, [], Outcome("job.py", error)))
    assert said in report
    assert ("nothing found" in report) == (said == "nothing found")


def test_json(report: Report, tmp_path: Path) -> None:
    first, *_, last = json.loads(as_json(report))["findings"]
    assert first == {
        "code": "NCC_EVRF001",
        "severity": "error",
        "file": str(tmp_path / "job.py"),
        "line": 7,
        "what": "FFT",
        "op": "stablehlo.fft",
        "message": "An unsupported operator was used",
        "detail": "",
        "remedy": "Compute it on the host, or as a matrix product with a DFT matrix.",
        "document": "Neuron compiler error codes, NCC_EVRF001 and NCC_EUOC002",
    }
    assert (last["file"], last["line"]) == (None, None)


def test_a_script_without_programs_was_not_checked(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('hello')\n")
    done = lint(tmp_path, "plain.py")
    assert done.returncode == 2
    assert "No program was compiled for platform neuron" in done.stdout
